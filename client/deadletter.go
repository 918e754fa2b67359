package client

import (
	"context"
	"encoding/json"
	"net/url"
	"strconv"
	"time"
)

// DeadLetter is a message that a group has given up.
type DeadLetter struct {
	ID               string          `json:"id"`
	TransactionID    string          `json:"transactionId"`
	PartitionID      string          `json:"partitionId"`
	Queue            string          `json:"queue"`
	Partition        string          `json:"partition"`
	Group            string          `json:"consumerGroup"`
	Reason           string          `json:"errorMessage"` // of the last failure
	RetryCount       int             `json:"retryCount"`
	Data             json.RawMessage `json:"data"`            // null when retention has removed it, or the key may not see it:
	Withheld         bool            `json:"payloadWithheld"` // it has neither the scope consume nor read:payload
	MessageID        string          `json:"messageId"`
	Offset           int64           `json:"offset"`
	MessageCreatedAt time.Time       `json:"messageCreatedAt"`
	FailedAt         time.Time       `json:"failedAt"`
}

// DeadLetterFilter chooses dead letters; the zero value means all.
type DeadLetterFilter struct {
	Queue, Group, Partition string
	From, To                time.Time // of failing, in minutes; To includes its minute
}

func (f *DeadLetterFilter) query() url.Values {
	q := url.Values{}
	set(q, "queue", f.Queue)
	set(q, "consumerGroup", f.Group)
	set(q, "partition", f.Partition)
	for key, t := range map[string]time.Time{"from": f.From, "to": f.To} {
		if !t.IsZero() {
			q.Set(key, t.UTC().Format(time.RFC3339))
		}
	}
	return q
}

// set adds a parameter that has a value.
func set(q url.Values, key, value string) {
	if value != "" {
		q.Set(key, value)
	}
}

// query renders parameters with the mark before them, or nothing.
func query(q url.Values) string {
	if len(q) == 0 {
		return ""
	}
	return "?" + q.Encode()
}

// DeadLetters returns a page of at most limit dead letters (0 means 100, at most 1000), the one that failed last first.
// cursor is "" for the first page, then what the page before returned; it is "" after the last page.
func (c *Client) DeadLetters(ctx context.Context, f DeadLetterFilter, limit int, cursor string) (page []DeadLetter, next string, err error) {
	q := f.query()
	set(q, "cursor", cursor)
	if limit > 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	var answer struct {
		Messages []DeadLetter `json:"messages"`
		Next     string       `json:"nextCursor"`
	}
	_, err = c.ask(ctx, &call{method: "GET", path: "/api/v1/dlq" + query(q), repeatable: true}, &answer)
	return answer.Messages, answer.Next, err
}

// PurgeDeadLetters deletes the dead letters of a queue, of one group and partition if they are not "", and returns how
// many. On an error it tells how many were deleted so far.
func (c *Client) PurgeDeadLetters(ctx context.Context, queue, group, partition string) (int64, error) {
	f := DeadLetterFilter{Queue: queue, Group: group, Partition: partition}
	var deleted int64
	for {
		var answer struct {
			Deleted int64 `json:"deleted"`
			More    bool  `json:"more"` // it is done in steps
		}
		_, err := c.ask(ctx, &call{method: "DELETE", path: "/api/v1/dlq" + query(f.query()), repeatable: true}, &answer)
		deleted += answer.Deleted
		if err != nil || !answer.More {
			return deleted, err
		}
	}
}

// Destination is a partition that dead letters return to.
type Destination struct {
	Queue     string `json:"queue"`
	Partition string `json:"partition"`
}

// ReplayDeadLetter moves a dead letter back to the end of the partition it came from, or to another one, in one commit:
// it is never lost and never there twice. All groups see it again. A letter that is gone is an [*Error] with Status 404;
// so is one that an earlier request of this call moved without an answer, with an unknown outcome.
func (c *Client) ReplayDeadLetter(ctx context.Context, id string, to *Destination) (PushResult, error) {
	var answer struct {
		As PushResult `json:"replayedAs"`
	}
	k := call{method: "POST", path: "/api/v1/dlq/" + url.PathEscape(id) + "/replay", repeatable: true}
	if to != nil {
		k.body = to
	}
	_, err := c.ask(ctx, &k, &answer)
	return answer.As, err
}

// RedriveRequest chooses dead letters to move back. Queue is required.
type RedriveRequest struct {
	DeadLetterFilter // To is exact here and excluded

	Error          string   // a part of the reason
	TransactionIDs []string // nil: any
	Limit          int      // how many at most, the ones that failed first; 0: all
	Destination    *Destination
	Rate           int  // messages a second; 0 means 100, at most 10,000
	DryRun         bool // only count
}

// Redrive is a running or ended move of many dead letters.
type Redrive struct {
	ID       string          `json:"id"` // "" of a dry run
	Queue    string          `json:"queue"`
	State    string          `json:"state"`
	Rate     int             `json:"rate"`
	Progress RedriveProgress `json:"progress"`
	Error    string          `json:"errorMessage"`
}

// RedriveProgress counts the dead letters of a redrive.
type RedriveProgress struct {
	Matched   int64 `json:"matched"`
	Moved     int64 `json:"moved"`
	Duplicate int64 `json:"duplicate"` // moved before
	Failed    int64 `json:"failed"`
	Gone      int64 `json:"gone"` // replayed or deleted by others meanwhile
	Remaining int64 `json:"remaining"`
	Done      bool  `json:"done"`
	Cancelled bool  `json:"cancelled"`
}

// Redrive starts to move many dead letters back where they came from, at a steady rate, and returns at once; see
// [Client.RedriveStatus]. It is not repeated after an unknown outcome: then two would run, each moving a part;
// [Client.Redrives] tells whether one does.
func (c *Client) Redrive(ctx context.Context, r RedriveRequest) (Redrive, error) {
	type filter struct {
		Partition      string     `json:"partition,omitempty"`
		Error          string     `json:"error,omitempty"`
		From           *time.Time `json:"from,omitempty"`
		To             *time.Time `json:"to,omitempty"`
		TransactionIDs []string   `json:"transactionIds,omitempty"`
	}
	body := struct {
		Queue       string       `json:"queue"`
		Group       string       `json:"consumerGroup,omitempty"`
		Limit       int          `json:"limit,omitempty"`
		Rate        int          `json:"rate,omitempty"`
		DryRun      bool         `json:"dryRun,omitempty"`
		Destination *Destination `json:"destination,omitempty"`
		Filter      filter       `json:"filter"`
	}{r.Queue, r.Group, r.Limit, r.Rate, r.DryRun, r.Destination, filter{r.Partition, r.Error, given(r.From), given(r.To), r.TransactionIDs}}
	var answer Redrive
	_, err := c.ask(ctx, &call{method: "POST", path: "/api/v1/dlq/redrive", body: body, repeatable: r.DryRun}, &answer)
	return answer, err
}

// given returns t, or nil for the zero time.
func given(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// Redrives returns the redrives that run, or ended within the last week, the newest first: of one queue unless it is "",
// at most limit (0 means 100, at most 1000).
func (c *Client) Redrives(ctx context.Context, queue string, limit int) ([]Redrive, error) {
	q := url.Values{}
	set(q, "queue", queue)
	if limit > 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	var answer struct {
		Redrives []Redrive `json:"redrives"`
	}
	_, err := c.ask(ctx, &call{method: "GET", path: "/api/v1/dlq/redrive" + query(q), repeatable: true}, &answer)
	return answer.Redrives, err
}

// RedriveStatus returns how far a redrive is.
func (c *Client) RedriveStatus(ctx context.Context, id string) (r Redrive, err error) {
	_, err = c.ask(ctx, &call{method: "GET", path: "/api/v1/dlq/redrive/" + url.PathEscape(id), repeatable: true}, &r)
	return r, err
}

// CancelRedrive ends a redrive and returns how far it came; what it has moved stays moved.
func (c *Client) CancelRedrive(ctx context.Context, id string) (r Redrive, err error) {
	_, err = c.ask(ctx, &call{method: "DELETE", path: "/api/v1/dlq/redrive/" + url.PathEscape(id), repeatable: true}, &r)
	return r, err
}
