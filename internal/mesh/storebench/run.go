package storebench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/role"
	"tare/internal/lib/self"
)

// Ready is the content of the ready message. It lists the store's maps, but no programs.
type Ready struct {
	kind.Objects
	Store  string `json:"store"`
	Atomic string `json:"atomic"` // how much of a change programs see at once
}

// Ready describes the store.
func (b *Bench) Ready() (Ready, error) {
	r := Ready{kind.Objects{Version: self.Version, Programs: []kind.Object{}}, b.o.Store, b.design.Atomic.String()}
	all := b.store.Maps()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		info, err := all[name].Info()
		if err != nil {
			return r, fmt.Errorf("reading map %s: %w", name, err)
		}
		id, _ := info.ID()
		r.Maps = append(r.Maps, kind.Object{ID: uint32(id), Name: name})
	}
	return r, nil
}

// Run runs the subject by the role protocol on conn: it opens and fills the store, sends ready, waits for the start,
// flushes changes, sends the result, and stays until the parent closes its end of conn. If the parent does so earlier,
// Run returns without an error.
func Run(ctx context.Context, o Options, conn *role.Conn) (err error) {
	b, err := New(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	ready, err := b.Ready()
	if err != nil {
		return err
	}
	return role.Work(ctx, conn, ready, b.Run)
}
