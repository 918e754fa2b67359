package main

// commands are the subcommands, in the order of the help.
var commands = []command{runCommand, gateCommand, judgeCommand, mutantsCommand, noiseCommand, pollsCommand}
