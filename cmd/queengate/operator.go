package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/internal/datadir"
	"github.com/queengate/queengate/wire"
)

// maxOperatorTTL bounds how long a token is good: it cannot be withdrawn but with the cell's key.
const maxOperatorTTL = 12 * time.Hour

// runOperatorToken prints the headers with which an operator asks a broker in tenancy mode, for `curl -H @-`.
func runOperatorToken(_ context.Context, in *invocation) error {
	var keyFile, cell, tenant, access string
	var ttl time.Duration
	c, err := in.load(func(fs *flag.FlagSet) {
		fs.StringVar(&keyFile, "cell-key", "", "`file` with the cell's private key; without one, that of the data folder of `up`")
		fs.StringVar(&cell, "cell", demoCell, "`slug` of the cell")
		fs.StringVar(&tenant, "tenant", "", "`id` of a tenant at the broker (broker_tenant of bootstrap), to ask in its name; without one, for routes of the cell")
		fs.StringVar(&access, "access", wire.AccessAdmin.String(), "`level`: admin, or internal for the routes that gateways use")
		fs.DurationVar(&ttl, "ttl", 10*time.Minute, "how long the token is good")
	})
	if err != nil {
		return err
	}
	if ttl < time.Second || ttl > maxOperatorTTL {
		return usageError{fmt.Errorf("--ttl = %v: want 1s to %v", ttl, maxOperatorTTL)}
	}
	claims := wire.CellClaims{Subject: "operator", Expires: time.Now().Add(ttl)}
	claims.Access, err = wire.ParseAccess(access)
	if err != nil || claims.Access != wire.AccessAdmin && claims.Access != wire.AccessInternal {
		return usageError{fmt.Errorf("--access = %q: want admin or internal", access)}
	}
	if tenant != "" {
		if claims.Tenant, err = uuid.Parse(tenant); err != nil {
			return usageError{fmt.Errorf("--tenant = %q: want a UUID", tenant)}
		}
	}
	key, err := datadir.CellKey(c.dataDir())
	if keyFile != "" {
		var text []byte
		if text, err = os.ReadFile(keyFile); err == nil {
			key, err = datadir.ParseCellKey(text)
		}
	}
	if errors.Is(err, os.ErrNotExist) {
		return usageError{fmt.Errorf("the cell's key is not there: want --cell-key, or --data with the folder of `up`: %w", err)}
	}
	if err != nil {
		return usageError{err}
	}
	token, err := wire.SignCell(key, cell, claims, time.Now())
	if err != nil {
		return err
	}
	return printHeaders(in.stdout, token, claims.Tenant)
}

func printHeaders(w io.Writer, token string, tenant uuid.UUID) error {
	_, err := fmt.Fprintf(w, "Authorization: Bearer %s\n", token)
	if err == nil && tenant != uuid.Nil {
		_, err = fmt.Fprintf(w, "%s: %s\n", wire.HeaderTenant, tenant)
	}
	return err
}
