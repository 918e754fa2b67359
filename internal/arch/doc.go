// Package arch holds only tests: they check the shape of the module, which no compiler does. A failure names the rule
// and the reason it stands for.
package arch
