// Package auth turns a credential into a principal, and says what a principal may do.
//
// A credential is the value of an Authorization header: an API key, which begins with "qk_", or a signed token; the
// word Bearer before it is optional. Keys are random and are looked up by their SHA-256. Tokens are JWTs: of users of ours,
// by configured keys, or of a tenant's own issuer, by keys that are fetched and whose rules say what the bearer may do
// (docs/design/credentials.md). Everything is decided from a plans.Snapshot, without I/O but for keys that are not there
// yet, so a revocation counts as soon as the snapshot has it, also for a token whose signature was verified before.
//
// An issuer counts at its tenant's places and nowhere else: the caller says which tenant a request goes to.
//
// What an attacker can try and why it fails: a token names a key id, and the algorithm is a property of that key, never
// of the token, so a public key cannot be used as a shared secret and "none" is no algorithm; a key's environment,
// public id and checksum are outside the secret, so scanners and logs can recognise a key without being able to use it;
// every refusal of a credential reads the same.
package auth
