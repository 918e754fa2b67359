package plans

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/queengate/queengate/internal/datadir"
)

// File says where and how a Book keeps what it knows, for a start while the control database is away.
type File struct {
	// Path is that of the file; its folder exists, and belongs to this process.
	Path string
	// Secret is what the file is sealed with. It is not stored.
	Secret []byte
	// Origin names the control database: a file of another one is refused.
	Origin string
}

const (
	// storePause lies between two writes of the file. A change that comes alone is written at once.
	storePause = time.Second
	// storeRetry lies between two attempts to write it that fail.
	storeRetry = 5 * time.Second
	// freshness is which part of the age that a file may reach a file without news is left to: then it is written anew,
	// because it has become no older.
	freshness = 48
)

// keeper keeps the file. The rows in it are those of the database but for the last moment, and never more than those: a
// change that may take something away removes the file before it is published, and the next one is written without it.
// So a key that this gateway has refused because the database does not know it is not revived by a file, whenever the
// process is killed; what a kill between the two costs is the file.
//
// At 10,000 clusters with 20,000 keys to write it takes 45 ms of CPU and to read it 95 ms (BenchmarkBook, 2 shared cores,
// 2026-11).
type keeper struct {
	File
	log   *slog.Logger
	newsC chan struct{} // capacity 1: there is something to be written
	raw   rawRows       // what the file shall hold; guarded by Book.mu

	stored atomic.Int64 // Synced of the file, in Unix nanoseconds; 0: there is none
	failed atomic.Int64 // writes that failed

	mu  sync.Mutex // guards era, and orders removals and replacements of the file
	era int        // grows with each removal: what was on its way to the disk then must not arrive
}

func newKeeper(log *slog.Logger, f File) *keeper {
	return &keeper{File: f, log: log, newsC: make(chan struct{}, 1)}
}

// open reads the file. An error says why there is none to be used; it is os.ErrNotExist when there is none at all.
func (k *keeper) open(maxAge time.Duration, now time.Time) (*document, *catalogue, error) {
	file, err := os.ReadFile(k.Path)
	if err != nil {
		return nil, nil, err
	}
	d, err := unseal(file, k.Secret)
	if err != nil {
		return nil, nil, err
	}
	if err := d.check(k.Origin, maxAge, now); err != nil {
		return nil, nil, err
	}
	c, err := restore(d.Rows)
	if err != nil {
		return nil, nil, err
	}
	k.raw = d.Rows
	k.stored.Store(d.Synced.UnixNano())
	return d, c, nil
}

// note takes over what a look at the database has found, before it is published. Book.mu is held.
func (k *keeper) note(ch *changes, found rawRows) {
	unread := k.raw == nil // whatever file there is, nothing is known of it
	if unread {
		k.raw = rawRows{}
	}
	differs, takes := k.raw.apply(ch.all, found)
	if unread || takes {
		k.remove()
	}
	if unread || differs {
		k.poke()
	}
}

func (k *keeper) poke() {
	select {
	case k.newsC <- struct{}{}:
	default: // it will be written anyway
	}
}

// remove removes the file, and sees to it that no older one takes its place.
func (k *keeper) remove() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.era++
	k.stored.Store(0)
	if err := os.Remove(k.Path); err != nil && !errors.Is(err, os.ErrNotExist) {
		k.failed.Add(1)
		k.log.Error("a last-known-good file cannot be removed that allows too much", "file", k.Path, "err", err)
	}
}

// keep writes the file after changes, and as long as the database answers also without, until ctx ends; then once more.
func (b *Book) keep(ctx context.Context) {
	k := b.keeper
	if err := datadir.RemoveDrafts(k.Path); err != nil {
		b.log.Warn("drafts of the last-known-good file are left over", "err", err)
	}
	again := time.NewTicker(max(b.maxAge/freshness, storePause))
	defer again.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
		case <-k.newsC:
		case <-again.C:
		}
		pause := storePause
		switch err := b.store(); {
		case err == nil && failing:
			b.log.Info("the last-known-good file is written again", "file", k.Path)
			failing = false
		case err != nil:
			k.failed.Add(1)
			k.poke()
			pause = storeRetry
			if !failing {
				b.log.Error("the last-known-good file cannot be written: a start without the control database would fail", "file", k.Path, "err", err)
				failing = true
			}
		}
		select {
		case <-ctx.Done():
			// Only what came during the last write is not in it.
			select {
			case <-k.newsC:
				if err := b.store(); err != nil {
					k.failed.Add(1)
					b.log.Error("the last-known-good file cannot be written", "file", k.Path, "err", err)
				}
			default:
			}
			return
		case <-time.After(pause):
		}
	}
}

// store writes what the book knows, unless the file has it.
func (b *Book) store() error {
	k := b.keeper
	b.mu.Lock()
	if b.rows == nil {
		b.mu.Unlock()
		return nil
	}
	d := &document{Origin: k.Origin, Synced: b.Synced(), Seq: b.current.Load().Seq(), Rows: k.raw}
	k.mu.Lock()
	era, known := k.era, k.stored.Load()
	k.mu.Unlock()
	if d.Synced.UnixNano() <= known {
		b.mu.Unlock()
		return nil
	}
	b.rows.forget(k.raw)
	sealed, err := d.seal(k.Secret) // under the lock, since the rows change in place
	b.mu.Unlock()
	if err != nil {
		return err
	}
	draft, err := datadir.NewDraft(k.Path, sealed, 0o600)
	if err != nil {
		return err
	}
	if err := k.place(draft, era, d.Synced); err != nil {
		return fmt.Errorf("replace %s: %w", k.Path, err)
	}
	return datadir.SyncDir(filepath.Dir(k.Path))
}

// place puts a draft in the place of the file, unless that was removed since it was begun.
func (k *keeper) place(draft *datadir.Draft, era int, synced time.Time) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.era != era {
		draft.Discard()
		return nil
	}
	if err := draft.Place(); err != nil {
		return err
	}
	k.stored.Store(synced.UnixNano())
	return nil
}

// forget removes revocations that are remembered no more, as snapshot does: the change log says nothing about their end.
func (c *catalogue) forget(raw rawRows) {
	for jti := range raw[sqlRevoked] {
		if _, remembered := c.revoked[jti]; !remembered {
			delete(raw[sqlRevoked], jti)
		}
	}
}
