package execs

// Program returns the id of the counting program.
func (c *Counter) Program() uint32 {
	info, err := c.objects.TareExecs.Info()
	if err != nil {
		panic(err)
	}
	id, _ := info.ID()
	return uint32(id)
}
