"""For tests: contract suites, fakes, and the judge of a fleet's deliveries. Imported by tests and samples only."""
