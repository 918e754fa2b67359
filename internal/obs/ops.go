package obs

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Health tells whether a part serves. It is asked on every request to /readyz and /healthz, must answer within ctx and
// be safe for concurrent use. fact is shown beside the verdict and may be empty; it is no secret.
type Health func(ctx context.Context) (fact string, err error)

// Ops is the operators' port: GET /metrics, /livez (the process answers), /readyz (every part serves: 200 or 503 with
// the failing parts), /healthz (the facts behind readiness; 200 as long as the process answers) and /debug/pprof (the
// profiles of the runtime). It is for a private network: it has no credentials and tells no secrets.
type Ops struct {
	log    *slog.Logger
	ln     net.Listener
	server *http.Server
	parts  map[string]Health
}

// NewOps returns the port on ln, which it owns from now on.
func NewOps(log *slog.Logger, ln net.Listener, reg *prometheus.Registry, parts map[string]Health) *Ops {
	o := &Ops{log: log, ln: ln, parts: parts}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{Registry: reg, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn)}))
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { o.answer(w, http.StatusOK, report{Status: "ok"}) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		rep, ready := o.ask(r.Context())
		status := http.StatusOK
		if !ready {
			status = http.StatusServiceUnavailable
		}
		o.answer(w, status, rep)
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		rep, _ := o.ask(r.Context())
		o.answer(w, http.StatusOK, rep)
	})
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	o.server = &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn)}
	return o
}

// Run serves until ctx ends.
func (o *Ops) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { o.server.Close() })
	defer stop()
	if err := o.server.Serve(o.ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

type report struct {
	Status  string          `json:"status"`
	Version string          `json:"version,omitempty"`
	Parts   map[string]part `json:"parts,omitempty"`
}

type part struct {
	Status string `json:"status"`
	Fact   string `json:"fact,omitempty"`
}

// askBudget bounds one round over the parts: a probe that waits longer is as good as a failed one.
const askBudget = 2 * time.Second

// ask asks all parts at once.
func (o *Ops) ask(ctx context.Context) (report, bool) {
	ctx, cancel := context.WithTimeout(ctx, askBudget)
	defer cancel()
	type answer struct {
		name string
		part
		err error
	}
	answers := make(chan answer, len(o.parts))
	for name, f := range o.parts {
		go func() {
			fact, err := f(ctx)
			answers <- answer{name, part{"ok", fact}, err}
		}()
	}
	rep := report{Status: "ok", Version: Version(), Parts: map[string]part{}}
	for range o.parts {
		a := <-answers
		if a.err != nil {
			// The cause goes to the log: an error may quote an address.
			o.log.Warn("part is not ready", "failing", a.name, "err", a.err)
			a.Status, rep.Status = "failing", "failing"
		}
		rep.Parts[a.name] = a.part
	}
	return rep, rep.Status == "ok"
}

func (o *Ops) answer(w http.ResponseWriter, status int, rep report) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// An error here is a caller who left.
	_ = json.NewEncoder(w).Encode(rep)
}
