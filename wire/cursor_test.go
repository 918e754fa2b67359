package wire

import (
	"strings"
	"testing"
	"time"
)

func TestScanSeek(t *testing.T) {
	t.Parallel()
	noon := time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)
	for body, want := range map[string]string{ // "end", "noon", or part of the error
		``:                                     "end",
		" \n":                                  "end",
		`{}`:                                   "end",
		`{"other":[1]}`:                        "end",
		`{"toEnd":null,"timestamp":null}`:      "end",
		`{"toEnd":true}`:                       "end",
		`{"toEnd":true,"timestamp":null}`:      "end",
		`{"toEnd":false}`:                      "Must specify",
		`{"timestamp":"2026-09-01T12:00:00Z"}`: "noon",
		`{"timestamp":"2026-09-01T14:00:00.000+02:00","toEnd":false}`: "noon",
		`{"timestamp":"2026-09-01T12:00:00"}`:                         "noon",
		`{"timestamp":"2026-09-01 12:00:00.000"}`:                     "noon",
		`{"toEnd":true,"timestamp":"2026-09-01T12:00:00Z"}`:           "exclude",
		`{"timestamp":"yesterday"}`:                                   "must be a time",
		`{"timestamp":1756728000000}`:                                 "must be a string",
		`{"toEnd":"true"}`:                                            "true or false",
		`{"toEnd":true,"toEnd":true}`:                                 "duplicate",
		`{"TOEND":true}`:                                              "end",
		`{"timestamp":"0001-01-01T00:00:00Z"}`:                        "must be a time",
		`{"timestamp":"0001-01-01"}`:                                  "must be a time",
		`[]`:                                                          "unexpected",
		`{} x`:                                                        "unexpected",
	} {
		got, err := ScanSeek([]byte(body))
		switch {
		case err != nil:
			if AsError(err).Code != InvalidRequest || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %s", body, err, want)
			}
		case want == "end" && got.ToEnd && got.At.IsZero(), want == "noon" && !got.ToEnd && got.At.Equal(noon):
		default:
			t.Errorf("%s: %+v, want %s", body, got, want)
		}
	}
}

func TestScanSubscription(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		``: "subscriptionTimestamp is required", `{}`: "subscriptionTimestamp is required",
		`{"subscriptionTimestamp":null}`: "subscriptionTimestamp is required", `{"subscriptionTimestamp":""}`: "subscriptionTimestamp is required",
		`{"subscriptionTimestamp":"soon"}`: "must be a time", `{"subscriptionTimestamp":5}`: "must be a string",
	} {
		if _, err := ScanSubscription([]byte(body)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", body, err, want)
		}
	}
	if at, err := ScanSubscription([]byte(`{"subscriptionTimestamp":"2026-09-01T12:00:00Z","x":{}}`)); err != nil || at.Hour() != 12 {
		t.Error(at, err)
	}
}

func TestArgsBool(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]bool{"true": true, "1": true, "yes": true, "TRUE": true, "false": false, "0": false, "No": false, "": true} {
		a := ParseArgs([]byte("flag="+value), "flag")
		if got := a.Bool("flag", true); got != want || a.Err() != nil {
			t.Errorf("%q: %v, %v", value, got, a.Err())
		}
	}
	a := ParseArgs([]byte("flag=maybe"), "flag")
	if a.Bool("flag", false); a.Err() == nil {
		t.Error("maybe is no answer")
	}
}

// oracleSeek says what a body means in the plainest way.
func oracleSeek(body []byte) (Seek, error) {
	if strings.Trim(string(body), " \t\r\n") == "" {
		body = []byte("{}")
	}
	root, err := oracleParse(body)
	if err != nil || root.kind != '{' {
		return Seek{}, errOracle
	}
	flag, flagged, err := root.get("toEnd")
	if err != nil || flagged && flag.kind != 't' && flag.kind != 'f' && flag.kind != 'n' {
		return Seek{}, errOracle
	}
	text, _, err := root.str("timestamp")
	if err != nil {
		return Seek{}, errOracle
	}
	at, timed := time.Time{}, text != ""
	if timed {
		var ok bool
		if at, ok = ParseTime(text); !ok {
			return Seek{}, errOracle
		}
	}
	switch {
	case flag.kind == 't' && timed:
		return Seek{}, errOracle
	case timed:
		return Seek{At: at}, nil
	case flag.kind != 'f':
		return Seek{ToEnd: true}, nil
	}
	return Seek{}, errOracle
}

func FuzzScanSeek(f *testing.F) {
	for _, s := range []string{
		``, `{}`, `{"toEnd":true}`, `{"toEnd":null,"timestamp":"2026-09-01T12:00:00.123456Z"}`, `{"timestamp":"2026-09-01"}`,
		`{"toEnd":true,"timestamp":""}`, `{"timestamp":"0000-01-01T00:00:00Z"}`, `{"\u0074oEnd":false}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		want, wantErr := oracleSeek(body)
		got, err := ScanSeek(body)
		if (err == nil) != (wantErr == nil) || got != want {
			t.Fatalf("scanner says %+v, %v; oracle says %+v, %v", got, err, want, wantErr)
		}
	})
}
