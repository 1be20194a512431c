"""What became of GPU time: pure reckoning over telemetry, with coverage and a reason for whatever is not known."""
