// Package bearer verifies signed tokens (JWTs) that come in an Authorization header: those of a gateway's users and
// those of a broker's direct clients. It decides whether a token is genuine and in force; what its claims allow is the
// caller's business.
//
// A token names an algorithm and, perhaps, a key id; neither is believed. The algorithm must be in the accepted set, the
// key is found by the caller's own rule (Keys), and the two must fit: a key is good for the algorithms of its kind and of
// no other (Key.Fits). So a public key never serves as a shared secret, "none" is no algorithm, and keys or addresses of
// keys that stand in the token itself are not looked at. Extensions that a token calls critical are not understood, hence
// refused.
//
// Keys are configured, or come from an address (Remote): fetched at the start, again by the hour, and once more when a
// token names a key nobody knows, at most every five seconds. The last good set serves through an outage, for good or for
// a while. A fetched set holds public keys only, whatever the answer says.
//
// Where an address is a stranger's word, a Fetcher asks: it goes to public places only, and what it brings is bounded.
//
// Verifying costs tens of microseconds; Cache remembers what came out, in bounded memory, and whoever asks it judges
// time on every use. Everything here is safe for concurrent use, and only Remote does I/O.
package bearer
