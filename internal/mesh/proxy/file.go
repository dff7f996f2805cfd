package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/goccy/go-yaml"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/anypb"

	"tare/internal/lib/document"
	"tare/internal/lib/fault"
	"tare/internal/lib/files"
	"tare/internal/mesh/xds"
)

// maxConfig bounds a file of resources, in bytes.
const maxConfig = 16 << 20

// readFile reads a file of resources in Envoy's form: {"resources": [{"@type": ..., ...}]}, as JSON or YAML. Secrets
// may name files.
func (s *source) readFile(ctx context.Context, name string) error {
	resources, err := fileOf(name)
	if err != nil {
		return err
	}
	var u xds.Update
	for i, a := range resources {
		k, ok := xds.KindOf(a.GetTypeUrl())
		if !ok {
			return wrongFile(name, fmt.Errorf("resources[%d]: %s is not supported", i, a.GetTypeUrl()))
		}
		r, err := s.Parse(k, a.GetValue())
		if err != nil {
			return wrongFile(name, err)
		}
		u.Set = append(u.Set, xds.Active{Ref: xds.Ref{Kind: k, Name: r.Name}, Value: r.Value})
	}
	for _, f := range s.Apply(ctx, u) {
		return f.Err
	}
	return nil
}

func fileOf(name string) ([]*anypb.Any, error) {
	f, err := files.Open(name)
	if err != nil {
		return nil, fault.Wrap(
			err,
			fault.Usage,
			name,
			"name a file of resources in Envoy's form",
			"the configuration cannot be read",
		)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxConfig+1))
	if err == nil && len(b) > maxConfig {
		err = fmt.Errorf("it has more than %d bytes", maxConfig)
	}
	if err != nil {
		return nil, wrongFile(name, err)
	}
	if !strings.HasPrefix(strings.TrimSpace(string(b)), "{") {
		if line, err := document.Guard(b); err != nil {
			return nil, wrongFile(fmt.Sprintf("%s:%d", name, line), err)
		}
		if b, err = yaml.YAMLToJSON(b); err != nil {
			return nil, wrongFile(name, err)
		}
	}
	var file struct {
		Resources []json.RawMessage `json:"resources"`
	}
	if err := json.Unmarshal(b, &file); err != nil {
		return nil, wrongFile(name, err)
	}
	var out []*anypb.Any
	for i, raw := range file.Resources {
		a := &anypb.Any{}
		if err := protojson.Unmarshal(raw, a); err != nil {
			return nil, wrongFile(name, fmt.Errorf("resources[%d]: %w", i, err))
		}
		out = append(out, a)
	}
	return out, nil
}

func wrongFile(name string, err error) error {
	return fault.Wrap(err, fault.Usage, name, "docs/mesh-proxy.md says what it takes", "the configuration is wrong")
}
