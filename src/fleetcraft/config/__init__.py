"""What a person configures, read from TOML and checked: site profiles."""
