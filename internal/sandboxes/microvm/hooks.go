package microvm

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"tare/internal/experiment/child"
	"tare/internal/lib/fault"
)

// hookPatience is the time limit of a hook whose configuration has no timeout.
const hookPatience = time.Minute

// hostHooks returns the hooks that run on the host before the container is created.
func (s *shim) hostHooks() []specs.Hook {
	if s.spec.Hooks == nil {
		return nil
	}
	//nolint:staticcheck // prestart is deprecated, and still what engines set
	return slices.Concat(s.spec.Hooks.Prestart, s.spec.Hooks.CreateRuntime)
}

// runHooks runs hooks in order until one fails. Each gets the state on its standard input.
func runHooks(hooks []specs.Hook, state specs.State) error {
	if len(hooks) == 0 {
		return nil
	}
	document, err := json.Marshal(state)
	if err != nil {
		return err
	}
	for _, h := range hooks {
		limit := hookPatience
		if h.Timeout != nil {
			limit = time.Duration(*h.Timeout) * time.Second
		}
		if err := runHook(h, document, limit); err != nil {
			return fault.Wrap(err, fault.Usage, h.Path, "", "a hook of the bundle failed")
		}
	}
	return nil
}

func runHook(h specs.Hook, document []byte, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var said child.Tail
	cmd := child.Command{Path: h.Path, Argv: h.Args, Env: h.Env, OnlyEnv: true, Stdin: bytes.NewReader(document),
		Stdout: &said, Stderr: &said}
	if len(cmd.Argv) == 0 {
		cmd.Argv = []string{h.Path}
	}
	if err := child.Run(ctx, cmd, child.Options{Name: h.Path, Linger: time.Second}); err != nil {
		return fmt.Errorf("%w: %s", err, said.Text())
	}
	return nil
}
