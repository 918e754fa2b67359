package main

import (
	"context"
	"fmt"
	"log/slog"

	"golang.org/x/sys/unix"
)

const (
	// descriptorsPerClient are what a client takes at most: its connection, and one to a broker while its request is under
	// way, which for a waiting poll is all the time.
	descriptorsPerClient = 2
	// descriptorsBeside are for everything else: databases, listeners, logs, probes.
	descriptorsBeside = 512
)

// checkDescriptors tells at the start what would otherwise be found out under load: that the system lets the process have
// fewer open files than what the settings promise to serve. It only tells: a machine that never has so many clients is in
// order. The runtime has raised the soft limit to the hard one by now. level is Warn where a process is a service.
func checkDescriptors(log *slog.Logger, level slog.Level, setting string, clients int) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		log.Debug("the limit of open files is not known", "err", err)
		return
	}
	if short := shortOfDescriptors(limit.Cur, setting, clients); short != "" {
		log.Log(context.Background(), level, "too few open files are allowed for the settings", "short", short, "limit", limit.Cur)
	}
}

// shortOfDescriptors returns what is wrong with a limit of open files for so many clients, "" when it is enough.
func shortOfDescriptors(limit uint64, setting string, clients int) string {
	want := uint64(clients)*descriptorsPerClient + descriptorsBeside
	if limit >= want {
		return ""
	}
	most := 0
	if limit > descriptorsBeside {
		most = int((limit - descriptorsBeside) / descriptorsPerClient)
	}
	return fmt.Sprintf("%s = %d wants %d: raise the limit (LimitNOFILE, ulimit -n), or lower the setting to %d", setting, clients, want, most)
}
