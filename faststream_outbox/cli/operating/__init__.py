"""What the commands of operators share: settings, connection, output, and the rules of acts."""
