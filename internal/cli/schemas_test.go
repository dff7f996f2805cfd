package cli

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"tare/docs/schemas"
	"tare/internal/experiment/record"
	"tare/internal/kube/cluster"
	"tare/internal/lib/fault"
	"tare/internal/results/analysis"
	"tare/internal/results/calibrate"
	"tare/internal/results/comparison"
	"tare/internal/results/plan"
	"tare/internal/scale/ledger"
	"tare/test/schematest"
)

// formats are the documents that Tare writes for programs, and the types that they are written from.
var formats = map[string]reflect.Type{
	ledger.Schema: reflect.TypeFor[ledger.Ledger](), record.RunSchema: reflect.TypeFor[record.Run](),
	record.TrialSchema: reflect.TypeFor[record.Trial](), analysis.Schema: reflect.TypeFor[analysis.Summary](),
	calibrate.Schema: reflect.TypeFor[calibrate.Report](), doctorSchema: reflect.TypeFor[diagnosis](),
	loadSchema: reflect.TypeFor[loadDocument](), comparison.Schema: reflect.TypeFor[comparison.Comparison](),
	comparison.HistorySchema: reflect.TypeFor[comparison.Course](),
	analysis.PowerSchema:     reflect.TypeFor[analysis.Power](),
	plan.Schema:              reflect.TypeFor[plan.Plan](),
	versionSchema:            reflect.TypeFor[versionDocument](),
	cluster.Schema:           reflect.TypeFor[cluster.Cluster](),
}

// TestSchemas: docs/schemas has a schema of each format, which follows from the format's type. Only the name of the
// format is required, because files that an earlier version wrote lack fields that were added later.
func TestSchemas(t *testing.T) {
	raw, instant := reflect.TypeFor[json.RawMessage](), reflect.TypeFor[time.Time]()
	span := reflect.TypeFor[time.Duration]()
	for format, of := range formats {
		s, err := jsonschema.ForType(of, &jsonschema.ForOptions{TypeSchemas: map[reflect.Type]*jsonschema.Schema{
			raw: {}, instant: {Type: "string", Format: "date-time"}, span: {Type: "integer", Description: "nanoseconds"},
			reflect.TypeFor[record.NodeTrial](): {Type: "object",
				Description: "a trial at one node, with its name and its clock"},
		}})
		if err != nil {
			t.Fatalf("%s: %v", format, err)
		}
		published(s)
		s.Schema = "https://json-schema.org/draft/2020-12/schema"
		s.Title, s.Description = format, "See docs/formats.md. Fields may be added under the same name; none is removed or "+
			"changes its meaning."
		s.Required = []string{"schema"}
		var name any = format
		s.Properties["schema"] = &jsonschema.Schema{Const: &name}
		text, err := json.MarshalIndent(s, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join("../../docs/schemas", schemas.FileOf(format))
		if *update {
			if err := os.WriteFile(path, append(text, '\n'), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil || !bytes.Equal(want, append(text, '\n')) {
			t.Errorf("%s is not what the type of %s gives (run the test with -update): %v", path, format, err)
		}
	}
}

// published takes out of a schema what would refuse a document of an earlier or a later version.
func published(s *jsonschema.Schema) {
	if s == nil {
		return
	}
	s.Required = nil
	if len(s.Properties) > 0 || s.AdditionalProperties != nil && s.AdditionalProperties.Not != nil {
		s.AdditionalProperties = nil
	}
	if s.Type == "object" && len(s.Properties) == 0 {
		s.Type, s.Types = "", []string{"null", "object"} // a map may be nil
	}
	if slices.Equal(s.Types, []string{"null", "array"}) && s.Items != nil && s.Items.Type == "" &&
		len(s.Items.Types) == 0 &&
		len(s.Items.Properties) == 0 {
		s.Items = nil
	}
	for _, p := range s.Properties {
		published(p)
	}
	published(s.AdditionalProperties)
	published(s.Items)
}

// TestSchemasOfCommands: what commands print is as the schemas say. test/e2e checks every other document that it sees.
func TestSchemasOfCommands(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/broken" {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	defer server.Close()
	dir := writeRun(t, 24)
	for _, c := range []struct {
		args []string
		code fault.Code
	}{
		{[]string{"report", dir, "--format", "json"}, 0},
		{[]string{"power", dir, "--json"}, 0},
		{[]string{"plan", writeCosts(t), "--for", "rate=600,pods=3", "--node", "cpus=4,memory=1GiB", "--json"}, 0},
		{[]string{"compare", writeRuns(t, 0, 9e-6, 9e-6), writeRuns(t, 2, 9e-6), "--json"}, 0},
		{[]string{"compare", "--history", writeRuns(t, 0, 9e-6, 9e-6), "--json"}, 0},
		{[]string{"doctor", "--json"}, 0},
		{[]string{"version", "--json"}, 0},
		{[]string{"load", "http", "--url", server.URL, "--rate", "200", "--duration", "200ms", "--json"}, 0},
		{[]string{"load", "http", "--url", server.URL + "/broken", "--rate", "200", "--duration", "200ms", "--json"},
			fault.Exceeded},
	} {
		out, err := execute(c.args...)
		if fault.CodeOf(err) != c.code {
			t.Errorf("tare %v: %v\n%s", c.args, err, out)
			continue
		}
		if err := schematest.Check([]byte(out)); err != nil {
			t.Errorf("tare %v: %v\n%s", c.args, err, out)
		}
	}
}

// TestSchemasOfOldRuns: what earlier versions wrote is as the schemas of today say.
func TestSchemasOfOldRuns(t *testing.T) {
	eachOldRun(t, func(t *testing.T, dir string) {
		for file, check := range map[string]func([]byte) error{
			record.RunFile: schematest.Check, record.SummaryFile: schematest.Check, record.TrialsFile: schematest.Lines,
		} {
			text, err := os.ReadFile(filepath.Join(dir, file))
			if err != nil {
				t.Fatal(err)
			}
			if err := check(text); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
	})
}
