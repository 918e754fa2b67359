package wl

import (
	"context"
	"fmt"
	"net/url"
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/queengate/queengate/deploy/rel/hist"
)

// loot is what a tenant's clients have seen of its own ids, for others to try.
type loot struct {
	mu  sync.Mutex // guards ids
	ids []string   // partitions, leases, messages
}

func (l *loot) add(ids ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ids = append(l.ids, ids...)
	if n := len(l.ids); n > 64 {
		l.ids = l.ids[n-64:]
	}
}

func (l *loot) any(a *Actor) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.ids) == 0 {
		return "00000000-0000-8000-8000-000000000000"
	}
	return l.ids[a.dice.IntN(len(l.ids))]
}

// Walls is G5: two tenants with the same names for everything put a text of their own in all they send, and ask for what
// is the other's with ids that the other has seen. No answer, log line or metric may show the other's text.
func Walls() Workload {
	canaries := map[string]string{"g5-a": "canary4a7f", "g5-b": "canary9c2e"}
	others := map[string]string{"g5-a": "g5-b", "g5-b": "g5-a"}
	seen := map[string]*loot{"g5-a": {}, "g5-b": {}}
	w := Workload{Name: "G5", Clusters: []hist.Cluster{
		{Name: "g5-a", Workload: "G5", Canary: canaries["g5-a"]}, {Name: "g5-b", Workload: "G5", Canary: canaries["g5-b"]},
	}}
	for _, name := range []string{"g5-a", "g5-b"} {
		for range 2 {
			w.Threads = append(w.Threads, func(ctx context.Context, a *Actor) {
				i := intruder{Actor: a, cluster: name, canary: canaries[name], own: seen[name], other: seen[others[name]], foreign: canaries[others[name]]}
				a.produce(ctx, 100*time.Millisecond, func() { i.once(ctx) })
			})
		}
	}
	return w
}

// intruder is a client of one tenant that is curious about the other.
type intruder struct {
	*Actor
	cluster, canary, foreign string
	own, other               *loot
}

func (i *intruder) try(ctx context.Context, does hist.Does, r request) got {
	r.foreign = []string{i.foreign}
	t := i.stage.Tenants[i.cluster]
	return i.ask(ctx, i.gateway(t, ""), hist.AskArgs{Cluster: i.cluster, Does: does}, r, 0)
}

// once does one request of a mix of all routes that show something.
func (i *intruder) once(ctx context.Context) {
	foreign := url.PathEscape(i.other.any(i.Actor))
	switch i.dice.IntN(12) {
	case 0, 1, 2:
		i.try(ctx, hist.DoesPush, post("/api/v1/push", map[string]any{"items": []any{map[string]any{
			"queue": "shared", "partition": "p", "transactionId": fmt.Sprintf("same-%d", i.dice.IntN(50)),
			"payload": i.canary + i.canary, "traceId": "00000000-0000-4000-8000-000000000001",
		}}}))
	case 3, 4:
		i.pop(ctx)
	case 5:
		i.try(ctx, hist.DoesAck, post("/api/v1/ack", map[string]any{
			"transactionId": fmt.Sprintf("same-%d", i.dice.IntN(50)), "partitionId": i.other.any(i.Actor), "leaseId": i.other.any(i.Actor),
			"consumerGroup": "g", "status": "failed", "error": i.canary,
		}))
	case 6:
		i.try(ctx, hist.DoesRead, post("/api/v1/fetch", map[string]any{"entries": []any{map[string]any{"queue": "shared", "partition": "p", "offset": 0}}}))
	case 7:
		i.try(ctx, hist.DoesRead, get("/api/v1/messages/"+foreign+"/same-"+fmt.Sprint(i.dice.IntN(50))))
	case 8:
		i.try(ctx, hist.DoesRead, get("/api/v1/dlq?queue=shared"))
	case 9:
		i.try(ctx, hist.DoesRead, get("/api/v1/messages?queue=shared"))
	case 10:
		i.try(ctx, hist.DoesRead, post("/api/v1/lease/"+foreign+"/extend", map[string]any{"seconds": 10}))
	case 11:
		i.try(ctx, hist.DoesRead, get("/api/v1/resources/queues/"+i.canary)) // error texts repeat what one asks for
	}
}

// pop takes messages, keeps their ids for the other tenant to try, and lets some of them fail.
func (i *intruder) pop(ctx context.Context) {
	v := i.try(ctx, hist.DoesPop, get("/api/v1/pop/queue/shared?consumerGroup=g&batch=3&subscriptionMode=all&leaseSeconds=1"))
	var answer hist.PopAnswer
	if v.status != 200 || json.Unmarshal(v.body, &answer) != nil {
		return
	}
	for _, m := range answer.Messages {
		i.own.add(m.PartitionID, m.ID, answer.LeaseID)
	}
}
