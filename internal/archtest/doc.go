// Package archtest holds tests of the whole repository: who may import whom, which packages may read the clock, that each
// package says what it is for, and that the README and CI run the same tests.
//
// It has no code to import. The tests read source files and ask the go command for the import graph; they need no network and
// take a few seconds.
package archtest
