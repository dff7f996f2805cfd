package main

import (
	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/variants"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/table"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

// Units as Grafana names them.
const (
	cpus    = "suffix: CPU" // CPU seconds per second
	part    = "percentunit" // 1 is 100 %
	seconds = "s"
	perSec  = "ops"
	bytesIn = "bytes" // multiples of 1024
	plain   = "short"
)

// Widths and heights of panels, in units of a dashboard's grid, which has 24 columns.
const (
	whole = 24
	half  = 12
	third = 8

	low  = 8 // heights
	high = 12
)

// source returns a reference to the data source that the reader chose with the variable.
func source() common.DataSourceRef {
	return common.DataSourceRef{Type: cog.ToPtr("prometheus"), Uid: cog.ToPtr("${datasource}")}
}

// over returns a query for values over time. legend is a template with names of labels, such as "{{line}}".
func over(expr, legend string) cog.Builder[variants.Dataquery] {
	return prometheus.NewDataqueryBuilder().Expr(expr).LegendFormat(legend).Range()
}

// now returns a query for the current value of each series, which becomes a row of a table. ref identifies its column
// of values in the table (see value).
func now(ref, expr string) cog.Builder[variants.Dataquery] {
	return prometheus.NewDataqueryBuilder().Expr(expr).Instant().Format(prometheus.PromQueryFormatTable).RefId(ref)
}

// graph returns a panel with a line for each series.
func graph(title, unit, description string, queries ...cog.Builder[variants.Dataquery]) *timeseries.PanelBuilder {
	return timeseries.NewPanelBuilder().Title(title).Description(description).Unit(unit).
		Datasource(source()).Targets(queries).Span(half).Height(low).
		Legend(common.NewVizLegendOptionsBuilder().ShowLegend(true).DisplayMode(common.LegendDisplayModeTable).
			Placement(common.LegendPlacementBottom).Calcs([]string{"mean", "lastNotNull"})).
		Tooltip(common.NewVizTooltipOptionsBuilder().Mode(common.TooltipDisplayModeMulti).
			Sort(common.SortOrderDescending)).
		ShowPoints(common.VisibilityModeNever).AxisSoftMin(0)
}

// stacked returns a panel with an area for each series, stacked on top of each other.
func stacked(title, unit, description string, queries ...cog.Builder[variants.Dataquery]) *timeseries.PanelBuilder {
	return graph(title, unit, description, queries...).FillOpacity(60).LineWidth(0).
		Stacking(common.NewStackingConfigBuilder().Mode(common.StackingModeNormal))
}

// column is one column of a table: a label (see label), or the values of a query (see value).
type column struct {
	field, title, unit string // unit is empty for a label
}

func label(name string) column { return column{field: name, title: name} }

func value(ref, title, unit string) column { return column{"Value #" + ref, title, unit} }

// rows returns a table with the given columns, sorted by the first column of values, the largest on top. Labels without
// a column are hidden.
func rows(title, description string, columns []column, queries ...cog.Builder[variants.Dataquery]) *table.PanelBuilder {
	b := table.NewPanelBuilder().Title(title).Description(description).Datasource(source()).Targets(queries).
		Span(half).Height(high)
	names, order, include := map[string]string{}, map[string]int{}, map[string]bool{}
	sorted := false
	for i, c := range columns {
		names[c.field], order[c.field], include[c.field] = c.title, i, true
		if c.unit == "" {
			continue
		}
		b.OverrideByName(c.title, []dashboard.DynamicConfigValue{{Id: "unit", Value: c.unit}})
		if !sorted {
			b.SortBy([]cog.Builder[common.TableSortByFieldState]{
				common.NewTableSortByFieldStateBuilder().DisplayName(c.title).Desc(true)})
			sorted = true
		}
	}
	return b.WithTransformation(dashboard.DataTransformerConfig{Id: "merge", Options: map[string]any{}}).
		WithTransformation(dashboard.DataTransformerConfig{Id: "organize", Options: map[string]any{
			"includeByName": include, "indexByName": order, "renameByName": names}})
}

// line sets properties of one series of a graph. It ignores properties other than those in its list.
func line(p *timeseries.PanelBuilder, name string, properties map[string]any) {
	var list []dashboard.DynamicConfigValue
	for _, id := range []string{"color", "custom.stacking", "custom.fillOpacity", "custom.lineWidth", "custom.lineStyle",
		"custom.axisPlacement", "unit"} {
		if v, ok := properties[id]; ok {
			list = append(list, dashboard.DynamicConfigValue{Id: id, Value: v})
		}
	}
	p.OverrideByName(name, list)
}

// dashed draws a total as a dashed line above the areas that add up to it.
var dashed = map[string]any{
	"color": fixed("text"), "custom.stacking": map[string]any{"mode": "none"}, "custom.fillOpacity": 0,
	"custom.lineWidth": 1, "custom.lineStyle": map[string]any{"fill": "dash", "dash": []int{8, 8}},
}

// fixed returns the setting for a color that does not depend on the other series.
func fixed(color string) map[string]any { return map[string]any{"mode": "fixed", "fixedColor": color} }
