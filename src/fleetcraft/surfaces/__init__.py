"""Ways in: each looks through readmodel, acts through actions, and adds nothing of its own."""
