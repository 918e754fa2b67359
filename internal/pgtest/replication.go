package pgtest

import "strconv"

// Standby makes a copy of the running server that follows it.
func (s *Server) Standby(settings ...string) *Server {
	s.t.Helper()
	standby := newServer(s.t, settings)
	standby.run("pg_basebackup", "-D", standby.dir, "-h", s.Host, "-p", strconv.Itoa(s.Port), "-U", "postgres", "-X", "stream", "-R", "-c", "fast", "--no-sync")
	standby.Start()
	return standby
}

// Promote makes a standby a primary, on the next timeline, and returns when it is one.
func (s *Server) Promote() {
	s.t.Helper()
	s.Exec("SELECT pg_promote(true, 30)")
}

// Rewind makes a server that has ended, and that the other one has replaced, a standby of that one: what it had beyond
// the fork is undone.
func (s *Server) Rewind(primary *Server) {
	s.t.Helper()
	s.Stop()
	primary.Exec("CHECKPOINT") // until the first one, the new timeline is not in the file that pg_rewind looks at
	s.run("pg_rewind", "-D", s.dir, "--no-sync", "-R", "--source-server", primary.DSN())
	s.Start()
}

// Synchronous makes the server confirm a commit only when its standbys have it.
func (s *Server) Synchronous() {
	s.t.Helper()
	s.Set("synchronous_standby_names", "*")
	s.await("SELECT (count(*) > 0)::text FROM pg_stat_replication WHERE sync_state = 'sync' AND state = 'streaming'")
}

// Detach cuts the link of a standby to its primary, and returns when nothing comes over it any more.
func (s *Server) Detach() {
	s.t.Helper()
	s.Set("primary_conninfo", "")
	s.AwaitDetached()
}

// AwaitReplay returns when the standby shows all that the primary has committed.
func (s *Server) AwaitReplay(primary *Server) {
	s.t.Helper()
	at := primary.ask("SELECT pg_current_wal_lsn()::text")
	s.await("SELECT (pg_last_wal_replay_lsn() >= '" + at + "')::text")
}

// AwaitDetached returns when the standby receives nothing any more.
func (s *Server) AwaitDetached() {
	s.t.Helper()
	s.await("SELECT (count(*) = 0)::text FROM pg_stat_wal_receiver")
}
