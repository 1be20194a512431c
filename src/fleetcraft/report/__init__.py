"""Pages and figures for people, drawn from what the read models say."""
