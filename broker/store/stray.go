package store

import (
	"context"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/queengate/queengate/internal/pg"
)

// strays are the sessions that broke while a push waited for its answer. What the server has of such a push it may yet carry
// out, after we have turned to another session: a server that stood still reads what it was sent when it goes on. As long as
// its process is there, nobody can know from the tables whether the push is stored.
type strays struct {
	mu  sync.Mutex // guards all
	all []stray
}

type stray struct {
	backend string // pg.BackendOf
	life    Life
}

// maxStrays bounds what is remembered where nobody asks (Lingering), which is where there is no spool.
const maxStrays = 1024

// note remembers the session of conn if it is broken. One that has answered, whatever it was, has ended its statement.
func (s *strays) note(conn *pgxpool.Conn) {
	if c := conn.Conn(); c.IsClosed() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.all) == maxStrays {
			s.all = slices.Delete(s.all, 0, 1)
		}
		s.all = append(s.all, stray{pg.BackendOf(c), pg.LifeOf(c)})
	}
}

func (s *strays) seen() []stray {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.all)
}

// gone forgets those of seen that are not among there.
func (s *strays) gone(seen, there []stray) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = slices.DeleteFunc(s.all, func(v stray) bool { return slices.Contains(seen, v) && !slices.Contains(there, v) })
}

var lingering = statement(`SELECT ` + pg.BackendName + ` FROM pg_stat_activity WHERE ` + pg.BackendName + ` = ANY($1)`)

// Lingering returns how many processes of the server may still carry out a push whose answer was lost here. When it is 0,
// what became of all that broke before the call stands in the tables. They end by themselves within seconds of their next
// step: their sessions have nobody at the other end. Those of an earlier life of the database ended with it.
func (s *Store) Lingering(ctx context.Context) (int, error) {
	seen := s.strays.seen()
	if len(seen) == 0 {
		return 0, nil
	}
	names := make([]string, len(seen))
	for i, v := range seen {
		names[i] = v.backend
	}
	var found []string
	life, err := s.queryIn(ctx, 0, "look for lost sessions", lingering, []any{names}, func(row pgx.Rows) error {
		var name string
		err := row.Scan(&name)
		found = append(found, name)
		return err
	})
	if err != nil {
		return 0, err
	}
	var there []stray
	for _, v := range seen {
		if v.life == life && slices.Contains(found, v.backend) {
			there = append(there, v)
		}
	}
	s.strays.gone(seen, there)
	return len(there), nil
}
