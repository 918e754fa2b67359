package proxy

import (
	"encoding/json"
	"net/http"
	"testing"
)

// The document is for everybody, costs no plan and never reaches a broker; it describes what clients can reach.
func TestTheGatewayServesItsOwnOpenAPIDocument(t *testing.T) {
	t.Parallel()
	w := setup(t, options{})
	for name, request := range map[string]string{
		"without a credential": "GET /openapi.json HTTP/1.1\r\nHost: acme.example.com\r\n\r\n",
		"of an unknown host":   "GET /openapi.json HTTP/1.1\r\nHost: nobody.example.com\r\n\r\n",
		"with a key":           w.head("GET", "/openapi.json"),
	} {
		r := w.ask(request)
		if r.StatusCode != http.StatusOK || r.Header.Get("Content-Type") != "application/json" || r.Header.Get("X-Queen-Request-Id") == "" {
			t.Errorf("%s: %d %v %.200s", name, r.StatusCode, r.Header, r.body)
			continue
		}
		var doc struct {
			OpenAPI string                                `json:"openapi"`
			Paths   map[string]map[string]json.RawMessage `json:"paths"`
		}
		if err := json.Unmarshal([]byte(r.body), &doc); err != nil {
			t.Fatal(err)
		}
		if doc.OpenAPI != "3.1.0" || doc.Paths["/api/v1/push"]["post"] == nil || doc.Paths["/api/v1/system/maintenance"] != nil || doc.Paths["/metrics"] != nil {
			t.Errorf("%s: %d paths", name, len(doc.Paths))
		}
	}
	if r := w.ask("POST /openapi.json HTTP/1.1\r\nHost: acme.example.com\r\nContent-Length: 0\r\n\r\n"); r.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("a POST: %d", r.StatusCode)
	}
	select {
	case got := <-w.broker.seen:
		t.Errorf("the broker was asked for %s", got.target)
	default:
	}
}
