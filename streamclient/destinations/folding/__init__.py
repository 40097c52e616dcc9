"""Changes folded into the rows that they lead to: one law for mirrors and for frames in Spark. Pure."""
