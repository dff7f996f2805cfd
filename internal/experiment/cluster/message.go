// Package cluster runs the same trial on many machines at the same time. An agent on each machine, 'tare node', runs
// the trial as tare would on a single machine, reads the counters at both edges of the window by the machine's own
// clock, and sends one record. One coordinator, in the process of 'tare run', tells the agents what to run and when to
// start. None of these processes runs in a control group that is measured.
//
// Each agent opens one gRPC stream to the coordinator, so only the coordinator needs an address. Both sides show
// certificates of one authority (keys.go). The messages are JSON: specs and records are JSON already, and both sides
// must be the same build, so describing the types again in protobuf would gain nothing.
//
//	agent:       hello                     who it is
//	coordinator: ping / agent: pong        shows that both sides are alive, and how far their clocks are apart
//	coordinator: prepare                   a trial: set it up
//	agent:       prepared                  everything is set up; if that fails, a record is sent instead
//	coordinator: begin                     start time, by the agent's clock
//	agent:       record                    all that was measured
//	coordinator: abandon                   take the current trial down
//	coordinator: bye                       the run is over
package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"

	"google.golang.org/grpc"

	"tare/internal/experiment/record"
	"tare/internal/lib/text"
)

// message is one message of the stream, in either direction. Exactly one field is set.
type message struct {
	Hello    *Hello   `json:"hello,omitempty"`
	Ping     *ping    `json:"ping,omitempty"`
	Pong     *pong    `json:"pong,omitempty"`
	Prepare  *Job     `json:"prepare,omitempty"`
	Prepared *trialID `json:"prepared,omitempty"`
	Begin    *begin   `json:"begin,omitempty"`
	Record   *result  `json:"record,omitempty"`
	Abandon  *trialID `json:"abandon,omitempty"`
	Bye      *bye     `json:"bye,omitempty"`
}

// Hello introduces an agent to the coordinator. It is the agent's first message.
type Hello struct {
	record.Node
	Version string `json:"version"` // tare's version, with its build
	PID     int    `json:"pid"`     // the agent's pid

	// AllowCommands reports whether the agent runs specs that name commands, files and addresses.
	AllowCommands bool `json:"allow_commands,omitempty"`
}

// Job is a trial, the same for every node that takes part.
type Job struct {
	ID    uint64          `json:"id"` // counts the trials of this coordinator, from 1
	Share Share           `json:"share"`
	Data  json.RawMessage `json:"data"` // the spec and the planned trial, in package engine's format
}

// Share limits the control groups of a trial on a node's machine.
type Share struct {
	CPUs   float64 `json:"cpus,omitempty"`   // CPUs that these groups may use together; 0: no limit
	Weight float64 `json:"weight,omitempty"` // share of CPU time when it is scarce; other groups have 1; 0: the default
}

// The bounds of a Hello.
const (
	maxHelloText = 200 // bytes of each text
	maxCPUs      = 1 << 20
)

// clean bounds the values in an agent's hello.
func (h Hello) clean() Hello {
	for _, raw := range []*string{&h.Hostname, &h.Kernel, &h.BootID} {
		*raw = text.ClipLine(*raw, maxHelloText)
	}
	h.CPUs, h.PID = max(0, min(h.CPUs, maxCPUs)), max(0, min(h.PID, math.MaxInt32))
	return h
}

type trialID struct {
	ID uint64 `json:"id"`
}

type begin struct {
	ID uint64 `json:"id"`
	At int64  `json:"at_ns"` // CLOCK_MONOTONIC of the agent's machine
	// Quiet is the time after At, in nanoseconds, in which the coordinator sends no pings: answering them would take CPU
	// time while CPU time is measured.
	Quiet int64 `json:"quiet_ns"`
}

// result is the result of a trial: its record, an error, or both.
type result struct {
	ID     uint64          `json:"id"`
	Record json.RawMessage `json:"record,omitempty"`
	Error  string          `json:"error,omitempty"`
}

type bye struct{}

// The service, as protoc would generate it: one call with a stream in each direction.
const (
	serviceName = "tare.Cluster"
	joinName    = "Join"
	joinMethod  = "/" + serviceName + "/" + joinName
)

var joinStream = grpc.StreamDesc{StreamName: joinName,
	Handler: func(srv any, s grpc.ServerStream) error { return srv.(joiner).join(s) }, ServerStreams: true,
	ClientStreams: true}

type joiner interface {
	join(grpc.ServerStream) error
}

var service = grpc.ServiceDesc{ServiceName: serviceName, HandlerType: (*joiner)(nil),
	Streams: []grpc.StreamDesc{joinStream}}

// The longest accepted messages, in bytes. The record of a trial has some 100 KB, a spec at most 1 MiB, and all other
// messages a few hundred bytes.
const (
	maxFromAgent       = 8 << 20
	maxFromCoordinator = 2 << 20
	maxShort           = 64 << 10 // limit for messages with neither a record nor a spec
)

// codec encodes messages as JSON.
type codec struct {
	clean bool // sanitize all received text, so that it is safe to print and to store
}

func (codec) Name() string                  { return "json" }
func (codec) Marshal(v any) ([]byte, error) { return json.Marshal(v) }

func (c codec) Unmarshal(data []byte, v any) error {
	if c.clean {
		data = text.JSON(data)
	}
	if err := json.Unmarshal(data, v); err != nil {
		return err
	}
	if m, ok := v.(*message); ok {
		return m.check(len(data))
	}
	return nil
}

// check returns an error if the message is invalid. length is its size in bytes.
func (m *message) check(length int) error {
	set := 0
	for _, is := range []bool{m.Hello != nil, m.Ping != nil, m.Pong != nil, m.Prepare != nil, m.Prepared != nil,
		m.Begin != nil, m.Record != nil, m.Abandon != nil, m.Bye != nil} {
		if is {
			set++
		}
	}
	switch {
	case set == 0:
		return errors.New(m.what())
	case set > 1:
		return fmt.Errorf("%s and other messages in one", m.what())
	case m.Record == nil && m.Prepare == nil && length > maxShort:
		return fmt.Errorf("%s of %d bytes, and %d are allowed", m.what(), length, maxShort)
	}
	return nil
}

// what describes the message, for errors.
func (m *message) what() string {
	switch {
	case m.Hello != nil:
		return "a hello"
	case m.Ping != nil:
		return "a ping"
	case m.Pong != nil:
		return "a pong"
	case m.Prepare != nil:
		return fmt.Sprintf("the preparation of trial %d", m.Prepare.ID)
	case m.Prepared != nil:
		return fmt.Sprintf("that trial %d is prepared", m.Prepared.ID)
	case m.Begin != nil:
		return fmt.Sprintf("the begin of trial %d", m.Begin.ID)
	case m.Record != nil:
		return fmt.Sprintf("the record of trial %d", m.Record.ID)
	case m.Abandon != nil:
		return fmt.Sprintf("the end of trial %d", m.Abandon.ID)
	case m.Bye != nil:
		return "a bye"
	}
	return "an empty message"
}
