package execs

// Program is the id of the program that counts.
func (c *Counter) Program() uint32 {
	info, err := c.objects.TareExecs.Info()
	if err != nil {
		panic(err)
	}
	id, _ := info.ID()
	return uint32(id)
}
