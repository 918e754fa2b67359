package broker

import (
	"testing"
	"time"

	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/wire"
)

type switchAnswer struct {
	MaintenanceMode, PopMaintenanceMode bool
	BufferedMessages                    int
	BufferHealthy                       bool
	Message                             string
}

func TestPushMaintenanceRefusesPushes(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.one("q", "a")
	on := decode[switchAnswer](t, w.do("POST", "/api/v1/system/maintenance", `{"enabled":true}`).want(t, 200))
	if !on.MaintenanceMode || on.Message == "" || !on.BufferHealthy {
		t.Errorf("%+v", on)
	}
	a := w.do("POST", "/api/v1/push", `{"items":[{"queue":"q","payload":1}]}`).want(t, 503)
	if r := decode[refusal](t, a); r.Code != wire.Maintenance || r.Outcome != "none" || !r.Retryable || a.header.Get("Retry-After") != "5" {
		t.Errorf("%v %s", a.header, a.body)
	}
	if got := w.pop("q?autoAck=true"); len(got.Messages) != 1 {
		t.Error("pops are stopped too")
	}
	if got := decode[switchAnswer](t, w.do("GET", "/api/v1/system/maintenance", "").want(t, 200)); !got.MaintenanceMode || got.PopMaintenanceMode {
		t.Errorf("%+v", got)
	}
	w.do("POST", "/api/v1/system/maintenance", `{"enabled":false}`).want(t, 200)
	w.one("q", "b")
}

func TestSwitchesReachOtherBrokers(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	other := serve(t, w.pool, nil)
	other.one("q", "a") // its feed is awake
	w.do("POST", "/api/v1/system/maintenance", `{"enabled":true}`).want(t, 200)
	other.until("obeyed", func() bool {
		a := other.do("POST", "/api/v1/push", `{"items":[{"queue":"q","payload":1}]}`)
		return a.status == 503
	})
	// One that starts now, and has asked the database nothing yet, obeys from its first request on.
	late := serve(t, w.pool, nil)
	late.do("POST", "/api/v1/push", `{"items":[{"queue":"q","payload":1}]}`).want(t, 503)
}

func TestPopMaintenanceHoldsPolls(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.one("q", "a")
	waiting := make(chan answer)
	go func() { waiting <- w.do("GET", "/api/v1/pop/queue/early?wait=true&timeout=20000&autoAck=true", "") }()
	w.until("parked", func() bool { return w.b.park.Waiting() == 1 })
	on := decode[switchAnswer](t, w.do("POST", "/api/v1/system/maintenance/pop", `{"enabled":true}`).want(t, 200))
	if !on.PopMaintenanceMode || on.Message == "" {
		t.Errorf("%+v", on)
	}
	begin := time.Now()
	w.do("GET", "/api/v1/pop/queue/q", "").want(t, 204) // does not wait
	w.do("GET", "/api/v1/pop/queue/q?wait=true&timeout=700", "").want(t, 204)
	if d := time.Since(begin); d < 400*time.Millisecond {
		t.Errorf("the poll was held for %v", d)
	}
	w.one("early", "b") // it wakes the poll that was parked before, which finds pops stopped
	held := make(chan answer)
	go func() { held <- w.do("GET", "/api/v1/pop/queue/q?wait=true&timeout=20000&autoAck=true", "") }()
	w.until("both held", func() bool { return w.b.park.Waiting() == 2 })
	if got := decode[switchAnswer](t, w.do("GET", "/api/v1/system/maintenance/pop", "").want(t, 200)); !got.PopMaintenanceMode {
		t.Errorf("%+v", got)
	}
	w.do("POST", "/api/v1/system/maintenance/pop", `{"enabled":false}`).want(t, 200)
	for _, c := range []chan answer{waiting, held} {
		if got := decode[popped](t, (<-c).want(t, 200)); len(got.Messages) != 1 {
			t.Errorf("%+v", got)
		}
	}
}

func TestSwitchBodies(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	for _, path := range []string{"/api/v1/system/maintenance", "/api/v1/system/maintenance/pop"} {
		for _, body := range []string{`{}`, `{"enabled":1}`} {
			if r := decode[refusal](t, w.do("POST", path, body).want(t, 400)); r.Error != "enabled (boolean) is required" {
				t.Errorf("%s: %q", body, r.Error)
			}
		}
	}
	state := decode[map[string]any](t, w.do("GET", "/api/v1/system/shared-state", "").want(t, 200))
	if state["enabled"] != false || state["maintenance_mode"] != false || state["pop_maintenance_mode"] != false || state["reason"] == "" {
		t.Errorf("%v", state)
	}
}

func TestAnOldReadingDoesNotUndoASwitch(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	asked := time.Now()
	w.do("POST", "/api/v1/system/maintenance", `{"enabled":true}`).want(t, 200)
	w.b.obey(store.Switches{}, asked)
	if !w.b.switches.push.Load() {
		t.Error("a reading from before the switch was set has released it")
	}
}
