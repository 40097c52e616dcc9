"""What a request must look like, whatever the tables hold: one module for each operation.

``validate(request, limits)`` reads the message once and returns a frozen value for the action of the same name, or
raises ``ServiceError`` with the service's text. Rules that need a table's schema or rows are the action's.
"""
