package embedpg

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// arguments are the server's command line. Settings stand there and not in postgresql.conf, so that they follow the
// program that starts the server; the owner of a folder may still add to postgresql.conf what is not listed here.
func (s *Server) arguments() []string {
	buffers := sharedBuffers(memory())
	args := []string{"-D", s.short}
	for _, kv := range [][2]string{
		{"listen_addresses", ""},
		{"port", "5432"}, // only part of the socket's name
		{"unix_socket_directories", s.socket},
		{"unix_socket_permissions", "0700"},
		{"max_connections", "200"},
		{"superuser_reserved_connections", "3"},
		{"fsync", "on"},
		{"full_page_writes", "on"},
		// After a crash: one call instead of an fsync per file, which takes many seconds on a busy disk.
		{"recovery_init_sync_method", "syncfs"},
		{"synchronous_commit", "on"},
		{"shared_buffers", fmt.Sprintf("%dMB", buffers>>20)},
		{"effective_cache_size", fmt.Sprintf("%dMB", 2*buffers>>20)},
		{"work_mem", "8MB"},
		{"maintenance_work_mem", "64MB"},
		{"wal_compression", s.walCompression()},
		{"max_wal_size", "2GB"},
		{"min_wal_size", "256MB"},
		{"checkpoint_timeout", "15min"},
		{"random_page_cost", "1.1"},   // flash, as everywhere today
		{"jit", "off"},                // statements are short
		{"autovacuum_naptime", "15s"}, // cursors and partitions are updated in place, many times a second
		{"logging_collector", "off"},
		{"log_destination", "stderr"},
		{"log_line_prefix", "%m [%p] "},
		{"log_checkpoints", "off"},
		{"cluster_name", "queengate"},
	} {
		args = append(args, "-c", kv[0]+"="+kv[1])
	}
	return args
}

// walCompression prefers lz4, which costs a fraction of the built-in pglz, where the server was built with it.
func (s *Server) walCompression() string {
	out, err := exec.Command(s.bins.path("pg_config"), "--configure").Output()
	if err == nil && strings.Contains(string(out), "--with-lz4") {
		return "lz4"
	}
	return "on"
}

// sharedBuffers is an eighth of the memory within 128 MiB and 1 GiB: the machine of `up` is shared with its user.
func sharedBuffers(memory int64) int64 { return min(max(memory/8, 128<<20), 1<<30) }

// memory returns the bytes this process may use: the machine's, or less in a container. 0 means unknown.
func memory() int64 {
	total := meminfo("/proc/meminfo")
	if text, err := os.ReadFile("/sys/fs/cgroup/memory.max"); err == nil {
		if limit, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && (total == 0 || limit < total) {
			return limit
		}
	}
	return total
}

func meminfo(name string) int64 {
	text, err := os.ReadFile(name)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		var kb int64
		if n, _ := fmt.Sscanf(line, "MemTotal: %d kB", &kb); n == 1 {
			return kb << 10
		}
	}
	return 0
}
