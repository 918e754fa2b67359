package broker

import (
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/broker/store"
)

// throughputRow is a bucket of everything: what a tenant, or the whole cell, did, and what the brokers were like.
type throughputRow struct {
	Timestamp          millis  `json:"timestamp"`
	Ingested           int64   `json:"ingested"`
	Processed          int64   `json:"processed"`
	PopMessages        int64   `json:"popMessages"`
	IngestedPerSecond  float64 `json:"ingestedPerSecond"`
	ProcessedPerSecond float64 `json:"processedPerSecond"`
	PopPerSecond       float64 `json:"popPerSecond"`
	AvgLagMs           float64 `json:"avgLagMs"`
	MaxLagMs           int64   `json:"maxLagMs"`
	AvgEventLoopLagMs  float64 `json:"avgEventLoopLagMs"` // a goroutine's wait for a processor
	MaxEventLoopLagMs  float64 `json:"maxEventLoopLagMs"`
	MinFreeSlots       int     `json:"minFreeSlots"` // database sessions that were free on average at the fullest broker
	DBErrors           int64   `json:"dbErrors"`
	AckFailed          int64   `json:"ackFailed"`
	DLQ                int64   `json:"dlqCount"`
	CPUUserPct         float64 `json:"queenCpuUserPct"` // summed over the brokers, of one processor
	CPUSysPct          float64 `json:"queenCpuSysPct"`
	RSSMb              float64 `json:"queenRssMb"`
	PoolActive         float64 `json:"dbPoolActive"`
	PoolIdle           float64 `json:"dbPoolIdle"`
	PoolSize           float64 `json:"dbPoolSize"`
}

// throughput joins the buckets of activity and those of the brokers, by time. Buckets in which nothing at all was
// written are left out.
func throughput(span store.Span, points []store.Point, process []store.ProcessPoint, now time.Time) []throughputRow {
	rows := []throughputRow{}
	at := map[int64]int{}
	row := func(bucket time.Time) *throughputRow {
		i, ok := at[bucket.Unix()]
		if !ok {
			i = len(rows)
			at[bucket.Unix()] = i
			rows = append(rows, throughputRow{Timestamp: millis(bucket), MinFreeSlots: -1})
		}
		return &rows[i]
	}
	for i := range points {
		p := &points[i]
		r, seconds := row(p.Bucket), covered(span, p.Bucket, now)
		r.Ingested, r.Processed, r.PopMessages = p.PushMessages, p.AckSuccess, p.PopMessages
		r.IngestedPerSecond, r.ProcessedPerSecond = round(float64(r.Ingested)/seconds), round(float64(r.Processed)/seconds)
		r.PopPerSecond = round(float64(r.PopMessages) / seconds)
		r.AvgLagMs, r.MaxLagMs, r.AckFailed, r.DLQ = round(p.AvgLagMs()), p.LagMaxMs, p.AckFailed, p.DeadLetters
	}
	brokers := map[int64]float64{}
	for i := range process {
		p := &process[i]
		r := row(p.Bucket)
		brokers[p.Bucket.Unix()]++
		n := brokers[p.Bucket.Unix()]
		r.AvgEventLoopLagMs += (p.SchedLagMs - r.AvgEventLoopLagMs) / n
		r.MaxEventLoopLagMs = max(r.MaxEventLoopLagMs, round(p.SchedLagMaxMs))
		if r.MinFreeSlots < 0 || int(p.PoolIdle) < r.MinFreeSlots {
			r.MinFreeSlots = int(p.PoolIdle)
		}
		r.DBErrors += p.DBErrors
		r.CPUUserPct, r.CPUSysPct = round(r.CPUUserPct+p.CPUUserPct), round(r.CPUSysPct+p.CPUSysPct)
		r.RSSMb = round(r.RSSMb + p.RSSBytes/(1<<20))
		r.PoolActive, r.PoolIdle, r.PoolSize = round(r.PoolActive+p.PoolActive), round(r.PoolIdle+p.PoolIdle), round(r.PoolSize+p.PoolSize)
	}
	for i := range rows {
		rows[i].AvgEventLoopLagMs = round(rows[i].AvgEventLoopLagMs)
		rows[i].MinFreeSlots = max(rows[i].MinFreeSlots, 0)
	}
	slices.SortFunc(rows, func(a, b throughputRow) int { return time.Time(a.Timestamp).Compare(time.Time(b.Timestamp)) })
	return rows
}

// workerRow is a broker process: what the existing system calls a worker.
type workerRow struct {
	Hostname          string  `json:"hostname"`
	WorkerID          string  `json:"workerId"`
	AvgEventLoopLagMs float64 `json:"avgEventLoopLagMs"`
	MaxEventLoopLagMs float64 `json:"maxEventLoopLagMs"`
	FreeSlots         int     `json:"freeSlots"`
	DBConnections     int     `json:"dbConnections"`
	JobQueueSize      int     `json:"jobQueueSize"` // parked polls
	MessagesProcessed int64   `json:"messagesProcessed"`
	LastSeen          millis  `json:"lastSeen"`
}

// workers sums up each broker over a span. Slots, sessions and polls are of its last bucket.
func (b *Broker) workers(brokers []store.Broker, process []store.ProcessPoint) []workerRow {
	rows := make([]workerRow, len(brokers))
	at := make(map[uuid.UUID]int, len(brokers))
	samples := make([]float64, len(brokers))
	for i, w := range brokers {
		at[w.ID] = i
		rows[i] = workerRow{Hostname: w.Hostname, WorkerID: w.ID.String(), LastSeen: millis(w.Seen)}
	}
	for j := range process {
		p := &process[j]
		i, ok := at[p.Broker]
		if !ok {
			continue
		}
		r := &rows[i]
		samples[i]++
		r.AvgEventLoopLagMs += (p.SchedLagMs - r.AvgEventLoopLagMs) / samples[i]
		r.MaxEventLoopLagMs = max(r.MaxEventLoopLagMs, round(p.SchedLagMaxMs))
		r.FreeSlots, r.DBConnections, r.JobQueueSize = int(p.PoolIdle), int(p.PoolSize), int(p.Parked)
		r.MessagesProcessed += p.Messages
	}
	for i := range rows {
		rows[i].AvgEventLoopLagMs = round(rows[i].AvgEventLoopLagMs)
	}
	return rows
}
