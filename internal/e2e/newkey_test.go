package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"testing"
)

// TestAKeyWorksAsSoonAsItIsPrinted: `bootstrap` prints keys of a tenant that running gateways have not heard of, and will
// not hear of: notifications are off. Both serve it at once all the same, since they ask before they refuse it.
func TestAKeyWorksAsSoonAsItIsPrinted(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 1)
	if _, err := f.db.Exec(t.Context(), "DROP TRIGGER inval_log_notify ON queengate.inval_log"); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		name := fmt.Sprint("new", i)
		cmd := exec.Command(bin, "bootstrap", "--tenant", name, "--cluster", name, "--cell", "local", "--plan", "dedicated-s")
		cmd.Env = append(os.Environ(), f.env...)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// Its end may come a second later: that is how programs end which look for races.
		var made struct{ Keys []struct{ Key string } }
		err = json.NewDecoder(out).Decode(&made)
		for n := range f.gateways {
			if err != nil {
				break
			}
			f.key = made.Keys[len(made.Keys)-1].Key
			if r, err := f.call(t.Context(), n, "POST", "/api/v1/push", items("q", "p", "t", 1)); err != nil || r.status != http.StatusCreated {
				t.Errorf("gateway %d, the first push of %s: %v %d %s", n, name, err, r.status, r.body)
			}
		}
		if ended := cmd.Wait(); err != nil || ended != nil {
			t.Fatalf("bootstrap: %v, %v", err, ended)
		}
	}
}
