package microvm

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"

	"tare/internal/lib/lists"
)

// qmp is a client of the QEMU Machine Protocol (docs/interop/qmp-spec of QEMU), which sends one JSON document per line.
type qmp struct {
	conn net.Conn
	in   *json.Decoder
}

// qmpPatience is the time limit of everything that a client does, from its creation on.
const qmpPatience = 30 * time.Second

func newQMP(conn net.Conn) (*qmp, error) {
	q := &qmp{conn, json.NewDecoder(conn)}
	if err := conn.SetDeadline(time.Now().Add(qmpPatience)); err != nil {
		return nil, err
	}
	var greeting struct {
		QMP *json.RawMessage `json:"QMP"`
	}
	if err := q.in.Decode(&greeting); err != nil || greeting.QMP == nil {
		return nil, fmt.Errorf("QEMU's monitor does not greet: %w", err)
	}
	return q, q.run("qmp_capabilities", nil)
}

// run runs a command and, unless into is nil, decodes the result into it. It skips events.
func (q *qmp) run(command string, into any) error {
	if err := json.NewEncoder(q.conn).Encode(map[string]string{"execute": command}); err != nil {
		return fmt.Errorf("asking QEMU to %s: %w", command, err)
	}
	for {
		var answer struct {
			Event  string          `json:"event"`
			Return json.RawMessage `json:"return"`
			Error  *struct {
				Desc string `json:"desc"`
			} `json:"error"`
		}
		if err := q.in.Decode(&answer); err != nil {
			return fmt.Errorf("asking QEMU to %s: %w", command, err)
		}
		switch {
		case answer.Error != nil:
			return fmt.Errorf("asking QEMU to %s: %s", command, answer.Error.Desc)
		case answer.Return != nil && into != nil:
			return json.Unmarshal(answer.Return, into)
		case answer.Return != nil:
			return nil
		}
	}
}

// vcpus returns the thread ids of the virtual CPUs.
func (q *qmp) vcpus() ([]int, error) {
	type vcpu struct {
		Thread int `json:"thread-id"`
	}
	var list []vcpu
	if err := q.run("query-cpus-fast", &list); err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, errors.New("QEMU knows of no virtual CPU")
	}
	return lists.Map(list, func(c vcpu) int { return c.Thread }), nil
}
