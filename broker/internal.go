package broker

import (
	"encoding/json"
	"strconv"

	"github.com/google/uuid"
	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/wire"
)

// The internal routes are for gateways: what they count plans against. They ask for a token of level internal, with
// tenancy on or off.

// maxUsageTenants bounds one question about usage.
const maxUsageTenants = 10_000

// tenantUsage answers {"tenants":[uuid…]} with what each of them occupies, in order.
func (b *Broker) tenantUsage(x *exchange) error {
	var req struct {
		Tenants []uuid.UUID `json:"tenants"`
	}
	if err := json.Unmarshal(x.ctx.PostBody(), &req); err != nil || len(req.Tenants) > maxUsageTenants {
		return wire.Errorf(wire.InvalidRequest, `bad body: want {"tenants":[…]} with at most %d UUIDs`, maxUsageTenants)
	}
	if req.Tenants == nil {
		req.Tenants = []uuid.UUID{} // nil would ask for everybody
	}
	ctx, cancel := b.database()
	defer cancel()
	used, err := b.db.Usage(ctx, req.Tenants)
	if err != nil {
		return err
	}
	x.reply(fasthttp.StatusOK, func(dst []byte) []byte {
		dst = append(dst, `{"tenants":[`...)
		for i := range used {
			u := &used[i]
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(dst, `{"tenant":`...)
			dst = wire.AppendUUID(dst, u.Tenant)
			dst = appendInt(dst, `,"retained_bytes":`, u.RetainedBytes)
			dst = appendInt(dst, `,"queues":`, u.Queues)
			dst = append(dst, `,"computed_at":`...)
			dst = wire.AppendMicros(dst, u.ComputedAt)
			dst = append(dst, '}')
		}
		return append(dst, `]}`...)
	})
	return nil
}

// Bounds of a page of names.
const (
	defaultNames = 1000
	maxNames     = 10_000
)

// tenantNames answers with a page of a tenant's queue and partition names, in their order.
func (b *Broker) tenantNames(x *exchange) error {
	tenant, err := uuid.Parse(x.params[0])
	if err != nil {
		return wire.Errorf(wire.InvalidRequest, "the tenant is not a UUID")
	}
	args := x.ctx.QueryArgs()
	limit := defaultNames
	if raw := args.Peek("limit"); len(raw) > 0 {
		if limit, err = strconv.Atoi(string(raw)); err != nil || limit < 2 || limit > maxNames {
			return wire.Errorf(wire.InvalidRequest, "limit: want 2..%d", maxNames)
		}
	}
	after := store.Pair{Queue: string(args.Peek("after_queue")), Partition: string(args.Peek("after_partition"))}
	ctx, cancel := b.database()
	defer cancel()
	page, err := b.db.Names(ctx, tenant, after, limit)
	if err != nil {
		return err
	}
	x.reply(fasthttp.StatusOK, func(dst []byte) []byte {
		dst = append(dst, `{"names":[`...)
		for i, p := range page {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(dst, `{"queue":`...)
			dst = wire.AppendString(dst, p.Queue)
			dst = append(dst, `,"partition":`...)
			dst = wire.AppendString(dst, p.Partition)
			dst = append(dst, '}')
		}
		dst = append(dst, `],"more":`...)
		return append(strconv.AppendBool(dst, len(page) == limit), '}')
	})
	return nil
}
