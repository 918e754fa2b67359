package broker

import (
	"github.com/google/uuid"
)

// partitionLiveness answers with how many partitions of the tenant, or of a queue, are written, and with those that
// were written last.
func (b *Broker) partitionLiveness(x *exchange) error {
	args := x.args("queue", "limit")
	queue, limit := args.Name("queue"), args.Int("limit", 20, 1, 200)
	if err := args.Err(); err != nil {
		return err
	}
	ctx, cancel := b.database()
	defer cancel()
	l, err := b.db.Liveness(ctx, x.who.tenant, queue, limit)
	if err != nil {
		return err
	}
	type row struct {
		Queue         string    `json:"queue"`
		Partition     string    `json:"partition"`
		PartitionID   uuid.UUID `json:"partitionId"`
		LastWriteAt   *millis   `json:"lastWriteAt"`
		IdleSeconds   int64     `json:"idleSeconds"`
		LastOffset    int64     `json:"lastOffset"`
		LogStart      int64     `json:"logStart"`
		Messages      int64     `json:"messages"`
		RetainedBytes int64     `json:"retainedBytes"`
		Segments      int64     `json:"segments"`
	}
	rows := make([]row, len(l.Partitions))
	for i := range l.Partitions {
		p := &l.Partitions[i]
		rows[i] = row{p.Queue, p.Name, p.UID, nil, p.IdleSeconds, p.LastOffset, p.LogHead, max(0, p.LastOffset+1-p.LogHead), p.RetainedBytes, p.Segments}
		if !p.LastWrite.IsZero() {
			at := millis(p.LastWrite)
			rows[i].LastWriteAt = &at
		}
	}
	return x.answer(struct {
		Total      int64 `json:"total"`
		LastMinute int64 `json:"writtenLastMinute"`
		LastHour   int64 `json:"writtenLastHour"`
		Empty      int64 `json:"empty"`
		Partitions []row `json:"partitions"`
	}{l.Total, l.LastMinute, l.LastHour, l.Empty, rows})
}
