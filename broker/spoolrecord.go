package broker

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/broker/store"
)

// spoolRecord is one message that waits on disk for the database. Its ids are those its client was told.
type spoolRecord struct {
	accepted time.Time // milliseconds; when the push was answered, about
	unsure   bool      // the database was asked to store it and did not say what it did
	sealed   bool      // the payload is encrypted for the spool
	tenant   uuid.UUID
	pair     store.Pair
	ceiling  int64 // seconds that a queue without retention is given; 0: none
	txn, sub string
	payload  []byte
}

const (
	spoolVersion = 1

	spoolUnsure  = 1 << 0
	spoolSealed  = 1 << 1
	spoolCeiling = 1 << 2 // a ceiling follows the time

	spoolFlags = spoolUnsure | spoolSealed | spoolCeiling
)

var errSpoolRecord = errors.New("a record of the spool cannot be read")

// append appends the record: version, flags, numbers as varints, texts behind their length, the payload to the end.
func (r *spoolRecord) append(dst []byte) []byte {
	var flags byte
	if r.unsure {
		flags |= spoolUnsure
	}
	if r.sealed {
		flags |= spoolSealed
	}
	if r.ceiling > 0 {
		flags |= spoolCeiling
	}
	dst = append(dst, spoolVersion, flags)
	dst = binary.AppendVarint(dst, r.accepted.UnixMilli())
	if r.ceiling > 0 {
		dst = binary.AppendVarint(dst, r.ceiling)
	}
	dst = append(dst, r.tenant[:]...)
	dst = appendText(dst, r.pair.Queue)
	dst = appendText(dst, r.pair.Partition)
	dst = appendText(dst, r.txn)
	dst = appendText(dst, r.sub)
	return append(dst, r.payload...)
}

// readSpoolRecord reads what append wrote. The payload aliases data.
func readSpoolRecord(data []byte) (rec spoolRecord, err error) {
	if len(data) < 2 || data[0] != spoolVersion || data[1]&^spoolFlags != 0 {
		return rec, errSpoolRecord
	}
	rec.unsure, rec.sealed = data[1]&spoolUnsure != 0, data[1]&spoolSealed != 0
	r := fieldReader{rest: data[2:]}
	rec.accepted = time.UnixMilli(r.number())
	if data[1]&spoolCeiling != 0 {
		if rec.ceiling = r.number(); rec.ceiling <= 0 {
			return spoolRecord{}, errSpoolRecord
		}
	}
	rec.tenant = r.tenant()
	rec.pair.Queue, rec.pair.Partition = r.text(), r.text()
	rec.txn, rec.sub = r.text(), r.text()
	rec.payload = r.rest
	if r.bad {
		return spoolRecord{}, errSpoolRecord
	}
	return rec, nil
}
