package dataplane

import "sync/atomic"

// counters are since the beginning.
type counters struct {
	Connections, AcceptErrors, HandshakeErrors, Refused, Denied         atomic.Uint64
	Requests, Own, Failed, Retries, NoUpstream, Connects, ConnectErrors atomic.Uint64
}

// Stats is what the proxy has done since it began.
type Stats struct {
	Connections     uint64 `json:"connections"`      // that were taken
	AcceptErrors    uint64 `json:"accept_errors"`    // for want of descriptors, most likely
	HandshakeErrors uint64 `json:"handshake_errors"` // of TLS, with clients of TCP
	Refused         uint64 `json:"refused"`          // certificates of clients
	Denied          uint64 `json:"denied"`           // connections and requests, by rules
	Requests        uint64 `json:"requests"`
	Own             uint64 `json:"own_answers"` // that no endpoint gave
	Failed          uint64 `json:"failed"`      // requests that could not be brought to their end
	Retries         uint64 `json:"retries"`
	NoUpstream      uint64 `json:"no_upstream"` // there was no cluster, or no endpoint
	Connects        uint64 `json:"connects"`    // to endpoints
	ConnectErrors   uint64 `json:"connect_errors"`
}

// Stats are the counters now.
func (p *Proxy) Stats() Stats {
	s := &p.stats
	return Stats{
		Connections: s.Connections.Load(), AcceptErrors: s.AcceptErrors.Load(),
		HandshakeErrors: s.HandshakeErrors.Load(),
		Refused:         s.Refused.Load(), Denied: s.Denied.Load(), Requests: s.Requests.Load(),
		Own: s.Own.Load(), Failed: s.Failed.Load(),
		Retries: s.Retries.Load(), NoUpstream: s.NoUpstream.Load(),
		Connects: s.Connects.Load(), ConnectErrors: s.ConnectErrors.Load(),
	}
}
