package clusterreport

import (
	_ "embed" // the page and its style
	"fmt"
	"html/template"
	"io"
	"slices"

	"tare/internal/kube/cluster"
	"tare/internal/lib/text"
)

func init() {
	register(Format{Name: "html", Help: "one page with pictures, which needs no network, no script and no other file",
		Write: HTML})
}

//go:embed html.css
var style string

//go:embed html.tmpl
var source string

var page = template.Must(template.New("cluster").Funcs(template.FuncMap{"clean": text.Clean}).Parse(source))

// htmlPage is the data of the template. Names are as in the account: the template escapes them, and the page's content
// security policy forbids scripts and requests.
type htmlPage struct {
	Lead     []string
	Pictures []picture
	Tables   []htmlTable
	Remarks  [][2]string
	Style    template.CSS
}

// htmlTable is a table whose first column has names.
type htmlTable struct {
	Title, Note string
	Head        []string
	Rows        [][]string
}

// HTML writes the account as one page: the answer, two pictures, and the table of every view. The pictures show
// nothing that is not in the tables.
func HTML(w io.Writer, c *cluster.Cluster, o Options) error {
	p := htmlPage{Lead: lead(c), Remarks: remarks(c), Style: template.CSS(style)} // embedded, so it is trusted
	if c.Answered > 0 {
		p.Pictures = []picture{nodesPicture(c, o), workloadsPicture(c, o)}
		others := slices.DeleteFunc(cluster.Views(), func(view string) bool { return view == o.view() })
		for _, view := range slices.Insert(others, 0, o.view()) { // the requested view is first
			if len(c.By(view)) > 0 {
				o.By = view
				rows := viewTable(c, o, everyColumn)
				p.Tables = append(p.Tables, htmlTable{"By " + view, "Gross = net + tare. " + cellNote, rows[0], rows[1:]})
			}
		}
		if rows, left := reserveTable(c, o); len(rows) > 1 {
			t := htmlTable{reserveTitle, reserveNote, rows[0], rows[1:]}
			if left > 0 {
				t.Note = fmt.Sprintf("%d more nodes are not shown. ", left) + t.Note
			}
			p.Tables = append(p.Tables, t)
		}
	}
	if err := page.Execute(w, p); err != nil {
		return fmt.Errorf("making the account of the cluster as HTML: %w", err)
	}
	return nil
}
