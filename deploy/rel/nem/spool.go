package nem

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/queengate/queengate/deploy/rel/lab"
)

// The faults of a spool need one that is in use: all begin with taking PostgreSQL from the broker.

// fillTime is how long pushes go to the spool before something happens to it.
const fillTime = 1500 * time.Millisecond

// disk is N14: the volume of a spool is full, or fails to sync, while the database is away.
func (n *Nemesis) disk(f *fault, b *lab.Broker) {
	f.note.Outage = true
	undo := func() error { return nil }
	f.inject = func(ctx context.Context) (string, error) {
		if _, err := n.lose(ctx, []*lab.Broker{b}, lab.Weather{Cut: true}); err != nil {
			return "", err
		}
		sleep(ctx, fillTime)
		if f.note.Action == "full" {
			if err := b.Spool.Fill(); err != nil {
				return "", err
			}
			undo = b.Spool.Empty
			free, err := b.Spool.FreeBytes()
			if err == nil && free > 8192 {
				err = fmt.Errorf("%d bytes are free: %w", free, errNoEffect)
			}
			return fmt.Sprintf("%d bytes are free", free), err
		}
		stop, seen, err := n.lab.FailSyncs(ctx, b)
		undo = stop
		if err != nil {
			return "", err
		}
		return until(ctx, "a sync fails", seen)
	}
	f.repair = func(ctx context.Context) error {
		return errors.Join(undo(), regain(ctx, []*lab.Broker{b}))
	}
}

// power is N16: the power of a broker's machine fails while its spool is written. What the volume has not synced is
// lost, and the broker starts again on the rest.
func (n *Nemesis) power(f *fault, b *lab.Broker) {
	f.note.Outage = true
	f.inject = func(ctx context.Context) (string, error) {
		if _, err := n.lose(ctx, []*lab.Broker{b}, lab.Weather{Cut: true}); err != nil {
			return "", err
		}
		sleep(ctx, fillTime)
		if err := b.Signal(syscall.SIGSTOP); err != nil {
			return "", err
		}
		if _, err := until(ctx, "stop "+b.Name, func() (bool, string) { s := b.State(); return s == "T", s }); err != nil {
			return "", err
		}
		kept, err := b.Spool.Cut(func() error { return b.End(ctx, syscall.SIGKILL) })
		if err != nil {
			return "", err
		}
		files, err := b.Spool.Files()
		if err == nil && len(files) == 0 {
			err = fmt.Errorf("the spool was empty: %w", errNoEffect)
		}
		return fmt.Sprintf("the disk held %d bytes and %d files of the spool", kept, len(files)), err
	}
	f.repair = func(ctx context.Context) error { return comeBack(ctx, b) }
}

// comeBack gives a broker that is gone its database back and starts it.
func comeBack(ctx context.Context, b *lab.Broker) error {
	b.Weather(lab.Weather{})
	if b.Alive() {
		if err := b.End(ctx, syscall.SIGKILL); err != nil {
			return err
		}
	}
	return b.Restart(ctx)
}

// litter is N17: while a broker is gone, its spool gets files that do not belong there (doubles, torn and with bits
// turned, of other making, empty, a link) and a torn end of the newest. All that was in it must come out once, and nothing
// else.
func (n *Nemesis) litter(f *fault, b *lab.Broker) {
	f.note.Outage = true
	littered := false
	f.inject = func(ctx context.Context) (string, error) {
		if _, err := n.lose(ctx, []*lab.Broker{b}, lab.Weather{Cut: true}); err != nil {
			return "", err
		}
		sleep(ctx, fillTime)
		if err := b.End(ctx, syscall.SIGKILL); err != nil {
			return "", err
		}
		files, err := b.Spool.Files()
		if err != nil {
			return "", err
		}
		if len(files) == 0 {
			return "", fmt.Errorf("the spool was empty: %w", errNoEffect)
		}
		littered = true
		made, err := litter(files, rand.New(rand.NewPCG(uint64(f.note.ID), 17)))
		return fmt.Sprintf("%d files in the spool, %d more put there", len(files), made), err
	}
	f.repair = func(ctx context.Context) error {
		if err := comeBack(ctx, b); err != nil || !littered {
			return err
		}
		aside, err := until(ctx, "what does not belong into the spool is put aside", func() (bool, string) {
			files, err := b.Spool.Quarantined()
			return err == nil && len(files) >= litterAside, fmt.Sprintf("%d files are in quarantine", len(files))
		})
		if err == nil {
			n.say("          %s", aside)
		}
		return err
	}
}

// litterAside is how many files a spool must put aside of what litter makes: the copies and the noise. The empty one and
// the link are nobody's records.
const litterAside = 4

// litter makes files beside those of a spool and tears the end of the newest.
func litter(files []string, dice *rand.Rand) (int, error) {
	newest := files[len(files)-1]
	whole, err := os.ReadFile(newest)
	if err != nil {
		return 0, err
	}
	noise := make([]byte, 700)
	for i := range noise {
		noise[i] = byte(dice.Uint32())
	}
	turned := append([]byte{}, whole...)
	if len(turned) > 0 {
		turned[dice.IntN(len(turned))] ^= 1 << dice.IntN(8)
	}
	junk := [][]byte{whole, turned, whole[:len(whole)/2], noise, {}}
	for i, b := range junk {
		if err := os.WriteFile(beside(newest, i+1), b, 0o600); err != nil {
			return i, err
		}
	}
	if err := os.Symlink("/etc/hostname", beside(newest, len(junk)+1)); err != nil {
		return len(junk), err
	}
	end, err := os.OpenFile(newest, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return len(junk) + 1, err
	}
	_, err = end.Write(noise[:37])
	return len(junk) + 1, errors.Join(err, end.Close())
}

// beside names a file that comes after another in the order of names, with the same form.
func beside(file string, n int) string {
	dir, name := filepath.Split(file)
	ext := filepath.Ext(name)
	stem := []byte(name[:len(name)-len(ext)])
	for i := len(stem) - 1; i >= 0 && n > 0; i-- { // add n to the digits at the end
		if stem[i] < '0' || stem[i] > '9' {
			break
		}
		sum := int(stem[i]-'0') + n
		stem[i], n = byte('0'+sum%10), sum/10
	}
	return filepath.Join(dir, string(stem)+ext)
}
