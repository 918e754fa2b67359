package quota

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/queengate/queengate/internal/pgtest"
	"github.com/queengate/queengate/internal/redistest"
	"github.com/queengate/queengate/migrations"
	"github.com/queengate/queengate/quota/meter"
)

// lasting is the control database for gateways with a clock of their own: what is said lasts an hour.
type lasting struct {
	*meter.Store
	db *pgxpool.Pool
}

func (l lasting) SayAlone(ctx context.Context, gateway string) error {
	if err := l.Store.SayAlone(ctx, gateway); err != nil {
		return err
	}
	_, err := l.db.Exec(ctx, `UPDATE queengate.gateways_alone SET said_at = now() + interval '1 hour' WHERE gateway = $1`, gateway)
	return err
}

// A gateway that is cut off from Redis, and says so in the control database, keeps its share for as long as it does: what it
// admits comes out of the plan, not on top. One that says nothing, or cannot, is taken for dead as before.
func TestAGatewayThatIsAloneKeepsItsShare(t *testing.T) {
	for _, test := range []struct {
		name  string
		after func(*fleetRun, *pgxpool.Pool) // ten seconds
		dead  bool
		over  float64 // bursts, of which one is two seconds of the rate
	}{
		{"and says so", func(*fleetRun, *pgxpool.Pool) {}, false, (1 + 5*0.5) / 3},
		{"and dies", func(r *fleetRun, db *pgxpool.Pool) {
			r.dead[2] = true
			if _, err := db.Exec(r.t.Context(), `UPDATE queengate.gateways_alone SET said_at = now() - interval '4 s'`); err != nil {
				r.t.Fatal(err)
			}
		}, true, (1 + 5*0.5) / 3},
		{"and the database goes away", func(_ *fleetRun, db *pgxpool.Pool) { db.Close() }, true, (1 + 13*0.5) / 3},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			for _, leases := range []bool{false, true} {
				t.Run(fmt.Sprintf("leases %v", leases), func(t *testing.T) {
					db := pgtest.New(t, migrations.Gateway)
					link := redistest.NewLink(t, redistest.Options(t))
					w := newFleetWorld(t, redistest.Options(t), leases)
					w.budget = faultBudget
					w.absences = lasting{meter.NewStore(db), db}
					r := newLinkedRun(t, w, link)

					r.plan(200, 400)
					r.run(time.Second)
					link.Cut()
					r.run(10 * time.Second)
					others := r.gates[0].fleet
					if missing, dead := others.deaf.Load(), others.dead.Load(); missing != 1 || dead != 0 {
						t.Fatalf("%d missing, %d dead while it says that it is alone, want 1 and 0", missing, dead)
					}
					test.after(r, db)
					r.run(10 * time.Second)
					if missing, dead := others.deaf.Load() == 1, others.dead.Load() == 1; missing == test.dead || dead != test.dead {
						t.Fatalf("missing: %v, dead: %v", missing, dead)
					}
					if link.Heal(); !test.dead {
						r.run(2 * time.Second)
						if !r.gates[2].fleet.asking() || others.deaf.Load()+others.dead.Load() != 0 {
							t.Fatal("the gateway has not come back")
						}
					}
					r.judge(test.over, 0.8)
				})
			}
		})
	}
}

// saidAlone tells who has said that it is alone.
type saidAlone struct {
	Absences
	said chan string
}

func (s saidAlone) SayAlone(ctx context.Context, gateway string) error {
	err := s.Absences.SayAlone(ctx, gateway)
	select {
	case s.said <- gateway:
	default: // who waited has heard it
	}
	return err
}

// A gateway that runs says by itself that it is alone, once Redis does not answer.
func TestARunningGatewaySaysThatItIsAlone(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Gateway)
	link := redistest.NewLink(t, redistest.Options(t))
	said := make(chan string, 1)
	g := NewGate(slog.New(slog.DiscardHandler), WithFleet(FleetOptions{
		Redis: link.Options(), Prefix: "test:" + uuid.NewString(), Absences: saidAlone{meter.NewStore(db), said},
	}))
	ctx, stop := context.WithCancel(t.Context())
	var runs sync.WaitGroup
	runs.Go(func() { _ = g.Run(ctx) }) // it cannot take leave
	defer runs.Wait()
	defer stop()
	link.Cut()
	name := <-said
	var noted string
	if err := db.QueryRow(t.Context(), `SELECT gateway FROM queengate.gateways_alone`).Scan(&noted); err != nil {
		t.Fatal(err)
	}
	if noted != name || name != g.fleet.name {
		t.Fatalf("%s said that it is alone, %s is noted, want %s", name, noted, g.fleet.name)
	}
}
