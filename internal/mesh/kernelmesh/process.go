package kernelmesh

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"text/tabwriter"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/lib/param"
	"tare/internal/lib/quantity"
)

var _ kind.Player = guest{}

// fileKey is the process's setting for the file of its services. In a spec, the setting with this name is a number.
const fileKey = servicesKey

// Values of the setting source.
const (
	sourceAuto = "auto"
	sourceNone = "none"
)

// processSettings are the process's settings besides Settings. In an experiment the trial sets them.
var processSettings = []param.Setting{
	{Name: fileKey, Type: param.TypeText, Reach: param.ReachFile, Doc: "YAML file of services and their endpoints"},
	{Name: xdsKey, Type: param.TypeText, Reach: param.ReachAddress,
		Doc: "control plane that provides the services: HOST:PORT or unix:PATH"},
	{Name: "cgroup", Type: param.TypeText, Reach: param.ReachFile, Doc: "cgroup v2 directory whose processes are served"},
	{Name: "source", Type: param.TypeText, Reach: param.ReachNothing, Default: sourceAuto,
		Doc: "source addresses that access rules assume for sockets without one: auto (those of the default routes), none, " +
			"or IP[,IP]"},
	{Name: "allow-root", Type: param.TypeSwitch, Default: "false",
		Doc: "allow the root control group, and so serve every process of the machine"},
}

// Play runs the data plane's process.
func (guest) Play(ctx context.Context, conn *role.Conn, v param.Values) error {
	o, err := OptionsOf(v)
	if err != nil {
		return err
	}
	o.CgroupDir, o.ServicesFile, o.XDS, o.AllowRoot = v["cgroup"], v[fileKey], v[xdsKey], v.On("allow-root")
	const help = "see 'tare subject kernelmesh --help'"
	switch {
	case o.CgroupDir == "":
		return fault.New(fault.Usage, "--cgroup", help, "missing value")
	case (o.ServicesFile == "") == (o.XDS == ""):
		return fault.New(fault.Usage, "--services", "give --services or --xds; "+help,
			"the source of the services is missing")
	}
	if o.Sources, err = sources(v["source"]); err != nil {
		return err
	}
	return Run(ctx, o, conn)
}

// sources returns the addresses in the setting source.
func sources(text string) (all []netip.Addr, err error) {
	switch text {
	case sourceAuto:
		return Outward(), nil
	case sourceNone:
		return nil, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		a, err := netip.ParseAddr(strings.TrimSpace(part))
		if err != nil {
			return nil, fault.New(fault.Usage, "--source",
				"give auto, none, or an IPv4 address, an IPv6 address or both, with a comma between",
				"%q is not an address", part)
		}
		all = append(all, a)
	}
	return all, nil
}

// serving formats the ready message for people: where the services come from, and what is in the kernel.
func serving(_ param.Values, r Ready) string {
	var b strings.Builder
	if r.XDS != "" {
		fmt.Fprintf(&b, "kernelmesh serves the services of %s in %s, from store %s\n", r.XDS, r.Cgroup, r.Store)
	} else {
		fmt.Fprintf(&b, "kernelmesh serves %s, %s of %s in %s, from store %s\n", quantity.Counted(r.Services, "service"),
			quantity.Counted(r.Endpoints, "endpoint"), r.ServicesFile, r.Cgroup, r.Store)
	}
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "program\tid\tattached\tlink")
	for i, p := range r.Programs {
		fmt.Fprintf(t, "%s\t%d\t%s\t%d\n", p.Name, p.ID, r.Links[i].Attach, r.Links[i].ID)
	}
	fmt.Fprintln(t, "map\tid\ttype\tmax entries")
	for _, m := range r.Maps {
		fmt.Fprintf(t, "%s\t%d\t%s\t%d\n", m.Name, m.ID, m.Type, m.MaxEntries)
	}
	_ = t.Flush() // cannot fail: it writes to memory
	return strings.TrimSuffix(b.String(), "\n")
}
