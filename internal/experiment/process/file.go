package process

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"tare/internal/lib/fault"
	"tare/internal/lib/files"
	"tare/internal/lib/text"
)

// maxFile is the most bytes in a file with placeholders, and maxFiles the most files of a command.
const (
	maxFile  = 1 << 20
	maxFiles = 64
)

// File is a user's file with placeholders in it.
type File struct {
	Name string // the file's name in the command's directory; not a path
	Path string // path of the user's file, relative to this process's working directory
	Sum  string // SHA-256 of the user's file as At read it, in hexadecimal; empty before
}

// filesOf parses the setting "files". Its error continues a sentence that begins with the setting's name.
func filesOf(line string) ([]File, error) {
	words, err := Words(line)
	if err != nil {
		return nil, err
	}
	if len(words) > maxFiles {
		return nil, fmt.Errorf("has %d files; at most %d are written", len(words), maxFiles)
	}
	var all []File
	seen := map[string]bool{}
	for _, w := range words {
		name, path, named := strings.Cut(w, "=")
		if !named {
			name, path = filepath.Base(w), w
		}
		if name != filepath.Base(name) || name == "." || name == ".." || path == "" {
			return nil, fmt.Errorf("has %q, which is neither the path of a file nor NAME=PATH", text.Clip(w))
		}
		if seen[name] {
			return nil, fmt.Errorf("has two files %s: write one of them as NAME=PATH", text.Clip(name))
		}
		seen[name] = true
		all = append(all, File{Name: name, Path: path})
	}
	return all, nil
}

// read reads the user's file and checks it for misspelt placeholders. Its error has the code fault.Usage.
func (f File) read() ([]byte, error) {
	content, err := files.Read(f.Path, maxFile)
	if err == nil {
		err = checkPlaceholders(string(content))
	}
	return content, fault.Wrap(err, fault.Usage, f.Path, "'files' takes paths relative to where tare is started",
		"the file cannot be used")
}

// write writes the file, with its placeholders filled in and the mode of the user's file, into the directory of a
// place. It returns the SHA-256 of the user's file, in hexadecimal.
func (f File) write(p Place) (sum string, err error) {
	content, err := f.read()
	if err != nil {
		return "", err
	}
	filled, err := p.Fill(string(content))
	if err != nil {
		return "", fault.New(fault.Usage, f.Path, "use only placeholders whose value is known where the command runs",
			"the file %s", err)
	}
	if p.Dir == "" {
		return "", fault.New(fault.Usage, f.Path, "leave \"files\" out", "there is no directory for files here")
	}
	info, err := os.Stat(f.Path)
	if err == nil {
		err = os.WriteFile(filepath.Join(p.Dir, f.Name), []byte(filled), info.Mode().Perm())
	}
	if err != nil {
		return "", fault.Wrap(err, fault.Machine, p.Dir, "make room, or set TMPDIR to a directory on another disk",
			"%s cannot be written", f.Name)
	}
	digest := sha256.Sum256(content)
	return hex.EncodeToString(digest[:]), nil
}
