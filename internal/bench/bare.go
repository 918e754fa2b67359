package main

import (
	"crypto/tls"
	"encoding/json"
	"net"
	"os"
	"runtime/debug"

	"github.com/valyala/fasthttp"
)

// bareVariable makes the bench a proxy of fasthttp's server and client, as they come, told in the file it names: what a
// proxy costs that is written in Go and does nothing.
const bareVariable = "QUEENGATE_BENCH_BARE"

const bareConfig = `{"Addr":"{{.Addr}}","Upstream":"{{.Upstream}}","Cert":"{{.Cert}}","Key":"{{.Key}}"}`

func serveBare(config string) error {
	debug.SetGCPercent(400) // as the gateway
	text, err := os.ReadFile(config)
	if err != nil {
		return err
	}
	var f front
	if err := json.Unmarshal(text, &f); err != nil {
		return err
	}
	ln, err := net.Listen("tcp", f.Addr)
	if err != nil {
		return err
	}
	if f.Cert != "" {
		certificate, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			return err
		}
		ln = tls.NewListener(ln, &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS13})
	}
	client := &fasthttp.HostClient{Addr: f.Upstream, MaxConns: frontClients}
	server := &fasthttp.Server{NoDefaultServerHeader: true, Handler: func(ctx *fasthttp.RequestCtx) {
		ctx.Request.Header.Del(fasthttp.HeaderConnection)
		ctx.Request.URI().SetScheme("http")
		if err := client.Do(&ctx.Request, &ctx.Response); err != nil {
			ctx.Error(err.Error(), fasthttp.StatusBadGateway)
			return
		}
		ctx.Response.Header.Del(fasthttp.HeaderConnection)
	}}
	return server.Serve(ln)
}

// moduleVersion returns the version of a module that this program is made of.
func moduleVersion(path string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, m := range info.Deps {
		if m.Path == path {
			return m.Version
		}
	}
	return ""
}
