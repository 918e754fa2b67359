// Package spool keeps records on disk while whoever they are for cannot take them, and gives them back oldest first.
//
// Append answers after an fsync, which concurrent calls share. What it has answered survives a kill and, on a disk that
// keeps its word, a power cut. What it has refused is not there, or the error says that this is not known.
//
// A folder belongs to one process at a time. Its files are named by time and number, so that their order is that of
// their names; a file is written by one process and never again after it. Each has a random key of its own, with which
// every record is framed and checked: bytes inside a record cannot pass for a record, whoever wrote them. A record that
// is damaged, or cut off at the end of a file, is moved to the quarantine folder, counted, and stepped over.
//
// Reading is by batches. Before a batch is handed out, the folder notes how far it reaches; records that were handed
// out and not settled come back after a crash, marked as ones that may have been delivered (Record.Unsure); so does the
// batch that was settled last, since that is noted with the next one only.
//
// Whole files of another folder may be put into this one before a start, such as those of a machine that will not come
// back. A second copy of a file is recognised by its key and put into quarantine.
package spool
