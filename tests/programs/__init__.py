"""Programs as a new user would write them, and the tests that run them."""
