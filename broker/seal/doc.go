// Package seal encrypts payloads for the time they are stored, and opens them again. It is pure: no I/O, no clock.
//
// The unit is one payload. Its envelope says under which key it was sealed, so that several keys can be in use while one
// takes over from another, and is bound to where the message stands (Place) and to its transaction id: an envelope that
// was moved to another message, partition, queue or tenant does not open.
//
// # Bytes
//
//	0  1  version, 1
//	1  8  id of the key
//	9  24 nonce, random
//	33 …  ciphertext, as long as the payload, then a tag of 16 bytes
//
// No JSON text begins with the byte 1, so an envelope tells itself from a payload (Is): dead letters need no column.
//
// # Cryptography
//
// XChaCha20-Poly1305: with 192 random bits a nonce may be drawn for every message of a key's life, at any rate and by
// any number of brokers that know nothing of each other. (AES-GCM's 96 bits are good for 2^32 messages, an hour and a
// half at a million a second.) From the configured 32 bytes HKDF-SHA256 derives the key of the cipher and, apart from it,
// the key's id, the same wherever the key is configured: nobody can name a key wrongly, or two alike.
//
// The associated data is
//
//	"queengate payload" | envelope bytes 0..9 | tenant, 16 | partition, 8 big endian | length of the queue's name, 2 | the name | transaction id
//
// # Threats
//
// Who can read the database, its backups or its replicas learns names, transaction ids, producers, times and the length
// of each payload, and nothing of its content. Who can write to the database can delete, repeat and withhold messages,
// put an envelope back on a message of the same transaction id in the same partition, and put plaintext in its place; he
// can neither change a sealed payload nor pass it off as another message's. Brokers hold the keys in memory.
package seal
