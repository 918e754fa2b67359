// Package nem breaks a system that is under load, on purpose and on a schedule, and repairs it again.
//
// A fault is written in the history in four steps: it begins, it is observed (the process is gone, the link has reset
// connections, the broker says that it has lost its database), its repair begins, and it has ended. A fault that was
// never observed proves nothing, and the judge says so. One goroutine owns all faults, so that two of them meet only
// where a schedule composes them.
package nem
