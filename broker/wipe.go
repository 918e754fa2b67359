package broker

import (
	"context"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/wire"
)

// wipeTime is how long one request to wipe a tenant takes steps: short enough for the deadline of any caller and to let
// go of the database between requests, long enough that most tenants need one.
const wipeTime = 2 * time.Second

// wipeTenant takes steps of the removal of a tenant for a while, and answers how far it has come. Its first deed is to
// close the tenant, so that it stores nothing any more and cannot begin again. There is no way back: the token must name
// the tenant as well as the path does, and the one tenant of a broker without tenancy is never removed: there, every client
// with the role of an administrator comes as far as this.
func (b *Broker) wipeTenant(x *exchange) error {
	tenant, err := uuid.Parse(x.params[0])
	if err != nil || tenant == uuid.Nil {
		return wire.Errorf(wire.InvalidRequest, "the tenant is not a UUID")
	}
	if x.who.tenant != tenant {
		return wire.Errorf(wire.TenantAmbiguous, "the path and the token name different tenants")
	}
	if tenant == DefaultTenant {
		return wire.Errorf(wire.Forbidden, "a broker without tenants removes none")
	}
	within := func(do func(context.Context) error) error {
		ctx, cancel := b.database()
		defer cancel()
		return do(ctx)
	}
	if err := within(func(ctx context.Context) error { return b.db.CloseTenant(ctx, tenant) }); err != nil {
		return err
	}
	var sum wire.WipeAnswer
	for begin := time.Now(); !sum.Done; {
		var w store.Wiped
		err := within(func(ctx context.Context) (err error) {
			w, err = b.db.WipeTenant(ctx, tenant)
			return err
		})
		if err != nil {
			return err
		}
		sum.Rows, sum.What, sum.Done = sum.Rows+w.Rows, w.What, w.Done
		// A step that removes nothing has met somebody at the same rows: the caller comes again.
		if w.Rows == 0 || time.Since(begin) > wipeTime || b.draining.Load() {
			break
		}
	}
	err = within(func(ctx context.Context) error {
		left, err := b.db.Usage(ctx, []uuid.UUID{tenant})
		for _, u := range left {
			sum.Queues, sum.RetainedBytes = u.Queues, u.RetainedBytes
		}
		return err
	})
	if err != nil {
		return err
	}
	if sum.Rows > 0 || !sum.Done {
		b.log.Info("a tenant is being removed", "tenant", tenant, "rows", sum.Rows, "at", sum.What, "done", sum.Done)
	}
	x.reply(fasthttp.StatusOK, func(dst []byte) []byte {
		dst = append(dst, `{"rows":`...)
		dst = strconv.AppendInt(dst, sum.Rows, 10)
		dst = append(dst, `,"what":`...)
		dst = wire.AppendString(dst, sum.What)
		dst = append(dst, `,"done":`...)
		dst = strconv.AppendBool(dst, sum.Done)
		dst = appendInt(dst, `,"queues":`, sum.Queues)
		return append(appendInt(dst, `,"retained_bytes":`, sum.RetainedBytes), '}')
	})
	return nil
}
