// Package segment turns messages into the bytes of one stored segment and back. It is pure: no I/O, no clock.
//
// A segment is the unit of storage: the messages that one flush put into one partition, immutable once written. A
// message inside it is a frame, addressed by position: the message at offset O of a segment with base B is frame O-B.
// What all frames share (partition, base, created_at) stands in the segment's row, so no frame repeats it, and message
// ids are computed (MessageID) instead of stored.
//
// # Bytes
//
// All integers are little endian.
//
//	header   0  2  'Q' 'S'
//	         2  1  version, 1
//	         3  1  codec of the body: 0 raw, 1 zstd
//	         4  4  n, the number of frames
//	         8  4  length of the uncompressed body
//	        12  4  CRC-32C of bytes 4..12 and the uncompressed body
//	body    16  …  raw, or one zstd frame that inflates to exactly the length above
//
//	inflated body
//	         0  4n where each frame ends, counted from the end of this table
//	        4n  …  the frames, back to back
//
//	frame    0  1  flags: 1 trace id as 16 bytes, 2 trace id as text, 4 producer subject, 8 payload is encrypted
//	         1  2  length of the transaction id, then the transaction id
//	         …  16 trace id (flag 1), or 2 + length (flag 2)
//	         …  2 + length: producer subject (flag 4)
//	         …     the payload, up to the frame's end
//
// The table makes slicing free of walks. Bodies below 512 bytes, bodies that zstd cannot shrink by an eighth and those
// that are for the most part encrypted stay raw. Unknown versions, codecs and flags are refused, never guessed at.
//
// # Threats
//
// Open trusts nothing: it refuses a claimed length that the bytes at hand could not inflate to before it allocates,
// caps inflation at that length, verifies the checksum and then every frame's bounds, so Frame cannot fail later.
package segment
