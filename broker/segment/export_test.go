package segment

import "encoding/binary"

// Seal makes a raw segment with a right checksum around any table and frames.
func Seal(ends []uint32, frames []byte) []byte {
	var body []byte
	for _, end := range ends {
		body = binary.LittleEndian.AppendUint32(body, end)
	}
	body = append(body, frames...)
	blob := []byte{'Q', 'S', version, codecRaw}
	blob = binary.LittleEndian.AppendUint32(blob, uint32(len(ends)))
	blob = binary.LittleEndian.AppendUint32(blob, uint32(len(body)))
	blob = binary.LittleEndian.AppendUint32(blob, checksum(blob, body))
	return append(blob, body...)
}

// Mix is mix.
func Mix(p uint64) uint64 { return mix(p) }
